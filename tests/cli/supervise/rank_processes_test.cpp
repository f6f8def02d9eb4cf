#include "witan/cli/supervise/rank_processes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/comes_true.h"
#include "support/temp_folder.h"
#include "witan/cli/supervise/supervisor.h"

namespace witan::cli {
namespace {

constexpr const char* kFolder = "FOLDER_OF_RANKS";  // marks a process as a rank of this test, which runs in it

// A stopped process does not react to messages, and no other rank waits for it any more.
TEST(RankProcesses, ARankThatHangsAfterAllOthersIsKilled) {
  if (const char* given = std::getenv(kFolder)) {
    const std::filesystem::path folder = given;
    const std::string rank = std::getenv("RANK");
    if (rank == "0") {
      EXPECT_TRUE(test::comes_true([&] { return exists(folder / "1") && exists(folder / "2"); }));
      return;
    }
    std::ofstream(folder / rank).put('\n');
    if (rank == "1") ::raise(SIGSTOP);
    return;
  }
  const test::TempFolder folder;
  JobCall call;
  call.words = {"witan", "--gtest_filter=RankProcesses.ARankThatHangsAfterAllOthersIsKilled"};
  call.variables = {kFolder + ("=" + folder.path().string())};
  call.ranks = 3;
  call.notice = std::chrono::seconds(3);
  call.terminate = std::chrono::seconds(1);
  const auto start = RankProcesses::Clock::now();
  RankProcesses job(call);
  ASSERT_TRUE(test::comes_true([&] {
    job.poll();
    return job.ended();
  }));
  EXPECT_FALSE(job.has_failed()) << "a process that was ended did not fail by itself";
  EXPECT_GE(RankProcesses::Clock::now() - start, call.notice) << "it gets time to end";
  const auto ends = job.ends();
  EXPECT_EQ(ends[0].code, 0);
  EXPECT_FALSE(ends[0].ended_by_supervisor);
  EXPECT_EQ(ends[1].signal, SIGKILL) << "a stopped process does not react to SIGTERM";
  EXPECT_TRUE(ends[1].ended_by_supervisor);
  EXPECT_EQ(ends[2].code, 0);
}

TEST(VisibleDevices, FollowTheRemainingRanks) {
  EXPECT_EQ(visible_devices({0, 2, 3}, nullptr), "0,2,3");
  EXPECT_EQ(visible_devices({0, 2}, "4,GPU-8932f937,7"), "4,7");
  EXPECT_EQ(visible_devices({1}, "4,GPU-8932f937,7"), "GPU-8932f937");
}

TEST(SuperviseOptions, RoundTripThroughTheirWords) {
  EXPECT_EQ(SuperviseOptions().words(), "run --");
  EXPECT_EQ((SuperviseOptions{4, 2, 5, 0, 0.5}.words()),
            "run --ranks 4 --min-ranks 2 --max-restarts 5 --restart-window 0 --regrow 0.5 --");
}

}  // namespace
}  // namespace witan::cli
