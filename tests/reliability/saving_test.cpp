// A run is killed, or a file system call fails, at every call that a save makes; no checkpoint is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <map>

#include "reliability/small_runs.h"
#include "witan/report/events/metrics.h"

namespace witan::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WITAN_SKIP_UNDER_SANITIZERS() GTEST_SKIP() << "forks processes that start threads"
#else
#define WITAN_SKIP_UNDER_SANITIZERS() static_cast<void>(0)
#endif

SmallRuns& small_runs() {
  static SmallRuns runs;
  return runs;
}

// Tries every call of every variant, or every n-th call of two variants.
std::vector<Variant> some_variants() {
  return thorough() ? all_variants()
                    : std::vector<Variant>{{2, 2, "bfloat16", false, 1, false}, {1, 1, "bfloat16", false, 2, true}};
}
size_t stride() {
  return thorough() ? 1 : 11;
}
// Prints a line per variant, since the thorough form takes minutes.
void say(const Variant& variant, size_t calls, const char* what) {
  if (thorough()) std::cout << name_of(variant) << ": " << calls << ' ' << what << std::endl;
}

// The newest step whose folder has its final name just before the call `at`.
int64_t promised(const std::vector<std::string>& calls, size_t at, int64_t step) {
  for (size_t i = 0; i + 1 < at; ++i)
    for (const int64_t saved : {2, 4})
      for (const std::string& call : {cat("rename /.tmp-step-", saved, '.'), cat("renameat2 /.tmp-step-", saved, '.')})
        if (calls[i].starts_with(call) && calls[i].find('/', call.size()) == std::string::npos)
          step = std::max(step, saved);
  return step;
}

// The remaining files suffice: the run continues to the end, with the final state of an undisturbed run.
void expect_nothing_lost(const SmallRuns::Prepared& prepared, const fs::path& run, int64_t at_least,
                         const std::string& when) {
  const int64_t found = newest(run);
  ASSERT_GE(found, at_least) << when;
  const Ended resumed = small_runs().train(prepared, run);
  ASSERT_EQ(resumed.code, 0) << when << ": " << resumed.message;
  ASSERT_TRUE(final_state(run) == prepared.whole) << when << ": different final state";
  ASSERT_EQ(read_metrics(run / "metrics.jsonl").steps.size(), 4U) << when;
  if (found == 4) return;
  // Later saves have removed leftovers.
  std::vector<std::string> left;
  for (const auto& item : fs::directory_iterator(run / "checkpoints")) left.push_back(item.path().filename());
  ASSERT_EQ(left.size(), static_cast<size_t>(prepared.config.train.keep_last)) << when;
}

TEST(Saving, RunsKilledAtEveryFileSystemCallLoseNothing) {
  WITAN_SKIP_UNDER_SANITIZERS();
  int64_t kills = 0;
  for (const Variant& variant : some_variants()) {
    SCOPED_TRACE(name_of(variant));
    const auto prepared = small_runs().prepare(variant);
    const auto calls = small_runs().train(prepared, small_runs().fresh(prepared)).calls;
    ASSERT_GT(calls.size(), 50U);
    EXPECT_EQ(promised(calls, calls.size(), 0), 4) << "the last call follows the last complete checkpoint";
    for (size_t at = 1; at <= calls.size(); at += stride(), ++kills) {
      const fs::path run = small_runs().fresh(prepared);
      const Ended ended = small_runs().train(prepared, run, {static_cast<int64_t>(at), 0});
      const std::string when = cat("killed before call ", at, ", ", calls[at - 1]);
      ASSERT_TRUE(ended.killed) << when;
      ASSERT_NO_FATAL_FAILURE(expect_nothing_lost(prepared, run, promised(calls, at, variant.replaces ? 2 : 0), when));
    }
    say(variant, calls.size(), "calls, killed before each");
  }
  std::cout << kills << " kills in " << some_variants().size() << " variants\n";
}

// The ways in which a run may end after an error of this kind.
void expect_clear_end(const Ended& ended, int error, const std::string& when) {
  if (ended.code == 0) return;  // the failed call was not essential
  EXPECT_EQ(ended.code, error == ENOSPC ? 9 : 5) << when << ": " << ended.message;
  EXPECT_NE(ended.message.find("/checkpoints"), std::string::npos) << when << ": " << ended.message;
  const auto names = [&](const char* words) { return ended.message.find(words) != std::string::npos; };
  EXPECT_TRUE(names(std::strerror(error)) || (error == ENOSPC && names("the disk is full")))
      << when << ": " << ended.message;
}

TEST(Saving, EveryFailedCallIsReportedAndLosesNothing) {
  WITAN_SKIP_UNDER_SANITIZERS();
  int64_t faults = 0;
  std::map<std::string, int64_t> unharmed;
  size_t number = 0;
  for (const Variant& variant : some_variants()) {
    if (thorough() && number++ % 3 != 0) continue;  // every kind of call is among a third of them
    SCOPED_TRACE(name_of(variant));
    const auto prepared = small_runs().prepare(variant);
    const auto calls = small_runs().train(prepared, small_runs().fresh(prepared)).calls;
    for (const int error : {EIO, ENOSPC}) {
      for (size_t at = 1; at <= calls.size(); at += stride(), ++faults) {
        const fs::path run = small_runs().fresh(prepared);
        const Ended ended = small_runs().train(prepared, run, {static_cast<int64_t>(at), error});
        ASSERT_FALSE(ended.killed);
        const std::string& call = ended.calls.at(at - 1);  // ranks that write at the same time do so in any order
        const std::string when = cat(std::strerror(error), " in call ", at, ", ", call);
        expect_clear_end(ended, error, when);
        if (ended.code == 0) ++unharmed[call.substr(0, call.find(' '))];
        ASSERT_NO_FATAL_FAILURE(
            expect_nothing_lost(prepared, run, promised(calls, at, variant.replaces ? 2 : 0), when));
      }
    }
    say(variant, calls.size(), "calls, each failed with EIO and with ENOSPC");
  }
  for (const char* call : {"write", "fsync", "rename", "renameat2", "mkdir"})
    EXPECT_FALSE(unharmed.contains(call)) << "a run succeeded despite a failed " << call;
  std::cout << faults << " faults; the run went on after";
  for (const auto& [call, times] : unharmed) std::cout << ' ' << times << ' ' << call;
  std::cout << '\n';
}

// The next step is computed while a slow disk saves; the saved state is nevertheless the one after the step.
TEST(Saving, SlowDisksChangeNothing) {
  WITAN_SKIP_UNDER_SANITIZERS();
  for (const Variant& variant :
       {Variant{2, 2, "bfloat16", false, 2, false}, Variant{4, 1, "float32", false, 2, false}}) {
    SCOPED_TRACE(name_of(variant));
    const auto prepared = small_runs().prepare(variant);
    const fs::path run = small_runs().fresh(prepared);
    ASSERT_EQ(small_runs().train(prepared, run, {0, 0, 20}).code, 0);
    EXPECT_TRUE(final_state(run) == prepared.whole);
    fs::remove_all(run / "checkpoints" / "step-4");
    ASSERT_EQ(small_runs().train(prepared, run).code, 0);
    EXPECT_TRUE(final_state(run) == prepared.whole) << "the checkpoint of step 2 has the state before step 3's update";
    const Metrics metrics = read_metrics(run / "metrics.jsonl");
    ASSERT_EQ(metrics.saves.size(), 2U);
    EXPECT_GT(metrics.saves[0].seconds, 0.1) << "at least seven files and folders, 20 ms each";
    EXPECT_LE(metrics.saves[0].paused_s, metrics.saves[0].seconds + 0.1);
  }
}

// One rank's disk takes longer than ranks wait for each other in other calls.
TEST(Saving, ASlowDiskOfOneRankDoesNotEndTheRun) {
  WITAN_SKIP_UNDER_SANITIZERS();
  auto prepared = small_runs().prepare({2, 2, "float32", false, 2, false});
  prepared.config.train.save_interval = 4;
  prepared.config.parallel.distributed_timeout_minutes = 0.05;
  const Fault slow{.slow_ms = 4000, .slow = "shard-00001"};
  const fs::path run = small_runs().fresh(prepared);
  const Ended ended = small_runs().train(prepared, run, slow);
  EXPECT_EQ(ended.code, 0) << ended.message;
  EXPECT_TRUE(final_state(run) == prepared.whole);

  prepared.config.parallel.checkpoint_timeout_minutes = 0.06;
  const Ended given_up = small_runs().train(prepared, small_runs().fresh(prepared), slow);
  EXPECT_EQ(given_up.code, 7);
  for (const char* words : {"cannot save step 4 to ", "/checkpoints: the others waited 0.06 minutes for rank 1 ",
                            "--checkpoint-timeout-minutes 0.12"})
    EXPECT_NE(given_up.message.find(words), std::string::npos) << given_up.message;
}

// Input of scripts/reliability/strace.sh, which compares it with the calls that the kernel saw.
TEST(Saving, DISABLED_ListsItsCalls) {
  for (const Variant& variant :
       {Variant{2, 2, "bfloat16", false, 1, false}, Variant{2, 1, "float32", false, 2, true}}) {
    const auto prepared = small_runs().prepare(variant);
    for (const std::string& call : small_runs().train(prepared, small_runs().fresh(prepared), {-1}).calls)
      std::cout << "call " << call << '\n';
    std::cout << "end\n" << std::flush;
  }
}

}  // namespace
}  // namespace witan::test
