// The published all-to-all demonstration between processes: rank 0 has [0..4] and rank 1 has [10..15]. With splits
// [[2,3],[3,3]], rank 0 receives [0,1], [10,11,12] and rank 1 receives [2,3,4], [13,14,15].
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "support/processes.h"
#include "support/program.h"
#include "support/temp_folder.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using testing::ProcessRank;

std::string exchange(ProcessRank& rank) {
  const bool first = rank.rank == 0;
  const Tensor in =
      first ? rank.tensor<int32_t>({5}, {0, 1, 2, 3, 4}) : rank.tensor<int32_t>({6}, {10, 11, 12, 13, 14, 15});
  const Tensor sends = first ? rank.tensor<int64_t>({2}, {2, 3}) : rank.tensor<int64_t>({2}, {3, 3});
  const Tensor receives = rank.stream.empty({2}, DType::i64);
  const auto group = rank.everyone("expert");
  group->all_to_all_equal(rank.stream, receives, sends);
  const auto counts = receives.to_vector<int64_t>();
  const Tensor out = rank.stream.empty({counts[0] + counts[1]}, DType::i32);
  group->all_to_all(rank.stream, out, receives, in, sends);
  std::string text = cat("rank ", rank.rank, " received");
  for (const int32_t value : out.to_vector<int32_t>()) text += cat(" ", value);
  return text;
}

constexpr const char* kPublished[] = {"rank 0 received 0 1 10 11 12", "rank 1 received 2 3 4 13 14 15"};

TEST(AllToAllDemonstration, RunsBetweenProcesses) {
  const auto ended = testing::on_processes(2, exchange);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(ended[rank].said, kPublished[rank]);
}

// A single rank as a launcher starts it, used by the tests below.
TEST(AllToAllDemonstration, DISABLED_RunsOneRankOfALauncher) {
  const auto launch = find_launch();
  ASSERT_TRUE(launch) << "not started by a launcher";
  ProcessWorld world(*launch, {60, 60});
  world.run([&](int) {
    ProcessRank rank(world);
    std::cout << exchange(rank) + "\n" << std::flush;
  });
}

class AllToAllUnder : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Launchers, AllToAllUnder, ::testing::Values("mpirun", "mpirun.openmpi", "mpirun.mpich"),
                         [](const auto& launcher) {
                           std::string name = launcher.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST_P(AllToAllUnder, MatchesThePublishedResult) {
  const test::TempFolder folder;
  if (test::Program({"/bin/sh", "-c", std::string("command -v ") + GetParam()}, folder / "which").wait() != 0)
    GTEST_SKIP() << GetParam() << " is not installed";
  // By default Open MPI refuses to run as root or to start more processes than cores.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const int code =
      test::Program({"/bin/sh", "-c",
                     cat("exec ", GetParam(), " -n 2 '", self,
                         "' --gtest_filter='*.DISABLED_RunsOneRankOfALauncher' --gtest_also_run_disabled_tests")},
                    folder / "log",
                    {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                     "OMPI_MCA_rmaps_base_oversubscribe=1", cat("MASTER_PORT=", testing::free_port())})
          .wait();
  const std::string log = testing::read_all(folder / "log");
  EXPECT_EQ(code, 0) << log;
  for (const char* line : kPublished) EXPECT_THAT(log, HasSubstr(line));
}

}  // namespace
}  // namespace witan
