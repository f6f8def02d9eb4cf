// Launchers that bind processes to fewer cores than their share.
#include "witan/comm/processes/core_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <thread>

#include "support/temp_folder.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

Launch launch_by(const char* rank, const char* size) {
  return *find_launch([&](const char* name) -> const char* {
    if (std::string(name) == rank) return "0";
    return std::string(name) == size || std::string(name) == "SLURM_STEP_NUM_TASKS" ? "2" : nullptr;
  });
}

TEST(CoreBinding, IsNamedWithItsWayOut) {
  const Launch open_mpi = launch_by("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(binding_warning({1, 16, 2}, open_mpi),
            "warning: the launcher binds this process to 1 of 16 cores, though its share as one of 2 processes here is "
            "8: its threads take turns, which can make steps many times slower; start with mpirun --bind-to none");
  EXPECT_THAT(binding_warning({1, 16, 2}, launch_by("PMI_RANK", "PMI_SIZE")), HasSubstr("-bind-to none (Intel"));
  EXPECT_THAT(binding_warning({1, 16, 2}, launch_by("SLURM_PROCID", "SLURM_NTASKS")), HasSubstr("--cpu-bind=none"));
  EXPECT_THAT(binding_warning({1, 16, 2}, launch_by("RANK", "WORLD_SIZE")), HasSubstr("without taskset"));
}

TEST(CoreBinding, OfAShareOrMoreIsNone) {
  const Launch launch = launch_by("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  for (const CoreBinding& binding : {CoreBinding{16, 16, 2}, {8, 16, 2}, {1, 2, 2}, {1, 3, 2}, {1, 1, 4}, {0, 16, 2}})
    EXPECT_EQ(binding_warning(binding, launch), "") << binding.own << " of " << binding.host;
}

// A host as the system shows it: the containers and jobs that a process is in have cores of their own.
TEST(CoreBinding, ReckonsWithTheCoresThatAContainerHas) {
  const test::TempFolder folder;
  const auto write = [&](const fs::path& path, const std::string& text) {
    fs::create_directories((folder / path).parent_path());
    std::ofstream(folder / path) << text;
  };
  const auto host = [&](const std::string& groups) {
    write("group", groups);
    return core_binding(1, folder / "cgroup", folder / "group").host;
  };
  const int online = core_binding(1, folder / "none", folder / "none").host;
  EXPECT_GE(online, 1);
  write("cgroup/cpuset.cpus.effective", "0-99999\n");
  write("cgroup/job/cpuset.cpus.effective", "3\n");
  write("cgroup/job/step/task/other", "");
  write("cgroup/cpuset/old/cpuset.cpus", "0,5\n");
  EXPECT_EQ(host("0::/\n"), online);
  EXPECT_EQ(host("0::/job\n"), 1);
  EXPECT_EQ(host("0::/job/step/task\n"), 1) << "that of what it is in";
  EXPECT_EQ(host("5:devices:/\n3:cpuset:/old\n0::/\n"), std::min(online, 2));
  EXPECT_EQ(host("no line of a group\n"), online);
}

TEST(CoreBinding, IsThatOfThisThread) {
  int bound = 0;
  std::thread([&] {
    cpu_set_t own;
    ASSERT_EQ(::sched_getaffinity(0, sizeof own, &own), 0);
    int core = 0;
    while (!CPU_ISSET(core, &own)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    bound = core_binding(1).own;
  }).join();
  EXPECT_EQ(bound, 1);
}

}  // namespace
}  // namespace witan
