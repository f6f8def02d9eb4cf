#include "witan/cli/supervise/verdict.h"

#include <gtest/gtest.h>

#include <csignal>

namespace witan::cli {
namespace {

using Ends = std::vector<RankEnd>;

RankEnd exited(ExitCode code) {
  return {.code = static_cast<int>(code)};
}
const RankEnd kDone = exited(ExitCode::done), kAlone = exited(ExitCode::rank_lost),
              kPreempted = exited(ExitCode::preempted), kKilled = {.signal = SIGKILL};

void expect(const Verdict& verdict, Outcome outcome, ExitCode code, const std::vector<int>& lost,
            const std::string& reason) {
  EXPECT_EQ(verdict.outcome, outcome);
  EXPECT_EQ(verdict.code, code);
  EXPECT_EQ(verdict.lost, lost);
  EXPECT_EQ(verdict.reason, reason);
}

TEST(Verdict, FinishedRanksEndTheRun) {
  expect(judge(Ends(3, kDone), false), Outcome::done, ExitCode::done, {}, "");
  expect(judge({kDone, kPreempted}, true), Outcome::done, ExitCode::done, {}, "");
}

TEST(Verdict, AKilledRankIsLostAndItsWaitingPeersAreNot) {
  expect(judge({kAlone, kAlone, kKilled, kAlone}, false), Outcome::failed, ExitCode::rank_lost, {2},
         "rank 2 was killed by signal 9 (Killed)");
  expect(judge({kKilled, kAlone, kKilled}, false), Outcome::failed, ExitCode::rank_lost, {0, 2},
         "rank 0 was killed by signal 9 (Killed), and 1 more failed");
}

TEST(Verdict, ABugOfOneRankIsItsOwn) {
  expect(judge({kAlone, exited(ExitCode::internal)}, false), Outcome::failed, ExitCode::internal, {1},
         "rank 1 ended with exit code 1");
  expect(judge({exited(ExitCode::device), kAlone}, false), Outcome::failed, ExitCode::device, {0},
         "rank 0 ended with exit code 10");
}

TEST(Verdict, RanksThatLostEachOtherAreAllPresent) {
  expect(judge(Ends(2, kAlone), false), Outcome::failed, ExitCode::rank_lost, {},
         "the ranks lost the connections to each other");
}

TEST(Verdict, AHangingRankIsLostUnlessAnotherFailedBefore) {
  const RankEnd hung = {.signal = SIGKILL, .ended_by_supervisor = true};
  expect(judge({kAlone, hung}, false), Outcome::failed, ExitCode::rank_lost, {1},
         "rank 1 did not end when others had failed");
  expect(judge({kKilled, hung}, false), Outcome::failed, ExitCode::rank_lost, {0},
         "rank 0 was killed by signal 9 (Killed)");
}

// Rank 0 leaves last, so its result is the run's, even if another rank hangs afterwards.
TEST(Verdict, ARankThatHangsAfterTheEndIsNotLost) {
  const RankEnd hung = {.signal = SIGKILL, .ended_by_supervisor = true};
  const std::string why = "rank 1 did not end when the run was over, and was made to";
  expect(judge({kDone, hung}, false), Outcome::done, ExitCode::done, {}, why);
  expect(judge({kPreempted, hung}, true), Outcome::stopped, ExitCode::preempted, {}, why);
  expect(judge({kPreempted, hung, kPreempted}, false), Outcome::stopped, ExitCode::preempted, {}, why);
  // It stopped before there was anything to save.
  EXPECT_EQ(judge({kPreempted, hung, kAlone}, false).outcome, Outcome::failed);
  EXPECT_EQ(judge({hung, kAlone}, false).outcome, Outcome::failed);
}

TEST(Verdict, ErrorsThatWouldRepeatAreRefused) {
  for (const ExitCode code : {ExitCode::usage, ExitCode::config, ExitCode::data, ExitCode::checkpoint,
                              ExitCode::diverged, ExitCode::out_of_memory, ExitCode::disk_full}) {
    const Verdict verdict = judge({kAlone, exited(code)}, false);
    EXPECT_EQ(verdict.outcome, Outcome::refused) << static_cast<int>(code);
    EXPECT_EQ(verdict.code, code);
  }
  // The other ranks' errors are consequences.
  EXPECT_EQ(judge({exited(ExitCode::checkpoint), kKilled}, false).outcome, Outcome::failed);
}

TEST(Verdict, ARunThatWasAskedToStopHasStopped) {
  expect(judge(Ends(2, kPreempted), true), Outcome::stopped, ExitCode::preempted, {}, "");
  expect(judge(Ends(2, exited(ExitCode::interrupted)), false), Outcome::stopped, ExitCode::interrupted, {}, "");
  expect(judge({kAlone, kPreempted}, true), Outcome::stopped, ExitCode::preempted, {}, "");
  EXPECT_EQ(judge({kPreempted, kKilled}, true).outcome, Outcome::failed);
  // The signal came before they handled signals.
  expect(judge({{.signal = SIGINT}, {.signal = SIGINT}}, true), Outcome::stopped, ExitCode::interrupted, {}, "");
  expect(judge({{.signal = SIGUSR1}, kAlone}, true), Outcome::stopped, ExitCode::preempted, {}, "");
  expect(judge({{.signal = SIGTERM}, kAlone}, false), Outcome::failed, ExitCode::rank_lost, {0},
         "rank 0 was killed by signal 15 (Terminated)");
}

// Another process stopped it before there was anything to save.
TEST(Verdict, ARankThatStopsAloneIsLost) {
  expect(judge({kAlone, kPreempted}, false), Outcome::failed, ExitCode::rank_lost, {1},
         "rank 1 ended with exit code 75");
}

}  // namespace
}  // namespace witan::cli
