#include "witan/cli/supervise/rank_processes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "witan/cli/supervise/supervisor.h"

namespace witan::cli {
namespace {

constexpr const char* kHangs = "RANK_THAT_HANGS";  // the process is a rank of this test, which is run in it

// Nothing that a process that is stopped could say ends it, and no other rank waits for it any more.
TEST(RankProcesses, ARankThatHangsBehindTheLastToLeaveIsKilled) {
  if (const char* hangs = std::getenv(kHangs)) {
    if (std::string_view(std::getenv("RANK")) == hangs) ::raise(SIGSTOP);
    return;
  }
  JobCall call;
  call.words = {"witan", "--gtest_filter=RankProcesses.ARankThatHangsBehindTheLastToLeaveIsKilled"};
  call.variables = {std::string(kHangs) + "=1"};
  call.ranks = 3;
  const auto start = RankProcesses::Clock::now();
  RankProcesses job(call);
  const auto patience = 2 * (RankProcesses::kAlone + RankProcesses::kTold);
  while (!job.ended() && RankProcesses::Clock::now() - start < patience) {
    job.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_TRUE(job.ended());
  EXPECT_FALSE(job.has_failed()) << "what was made to end did not fail by itself";
  EXPECT_GE(RankProcesses::Clock::now() - start, RankProcesses::kAlone) << "it is given time";
  const auto ends = job.ends();
  EXPECT_EQ(ends[0].code, 0);
  EXPECT_FALSE(ends[0].made_to_end);
  EXPECT_EQ(ends[1].signal, SIGKILL) << "a stopped process does not hear SIGTERM";
  EXPECT_TRUE(ends[1].made_to_end);
  EXPECT_EQ(ends[2].code, 0);
}

TEST(VisibleDevices, AreThoseOfTheRanksThatAreLeft) {
  EXPECT_EQ(visible_devices({0, 2, 3}, nullptr), "0,2,3");
  EXPECT_EQ(visible_devices({0, 2}, "4,GPU-8932f937,7"), "4,7");
  EXPECT_EQ(visible_devices({1}, "4,GPU-8932f937,7"), "GPU-8932f937");
}

TEST(SuperviseOptions, AreTheWordsThatSetThem) {
  EXPECT_EQ(SuperviseOptions().words(), "run --");
  EXPECT_EQ((SuperviseOptions{4, 2, 5, 0, 0.5}.words()),
            "run --ranks 4 --min-ranks 2 --max-restarts 5 --restart-window 0 --regrow 0.5 --");
}

}  // namespace
}  // namespace witan::cli
