#include "witan/comm/processes/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

std::optional<Launch> launch(const Variables& variables) {
  return find_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}
std::string refusal(const Variables& variables) {
  return test::message_of<ConfigError>([&] { launch(variables); });
}

// Rank 1 of a step of two tasks on one host, among other variables.
Variables slurm_step(Variables more) {
  more.insert({{"SLURM_PROCID", "1"},
               {"SLURM_NTASKS", "2"},
               {"SLURM_STEP_NUM_TASKS", "2"},
               {"SLURM_LOCALID", "0"},
               {"SLURM_STEP_ID", "0"}});
  return more;
}

TEST(Launch, IsOneProcessWithoutALauncher) {
  EXPECT_FALSE(launch({}));
  EXPECT_FALSE(launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  // A batch script is not a step of its job, and the shell of a salloc is a step with a single task.
  EXPECT_FALSE(launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}}));
  EXPECT_FALSE(launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}}));
}

// Commands that need no other process require neither an address nor a secret.
TEST(Launch, FindsRankAndSizeWithoutAnAddress) {
  const auto process = [](const Variables& variables) {
    const auto found = find_process([&](const char* name) -> const char* {
      const auto variable = variables.find(name);
      return variable == variables.end() ? nullptr : variable->second.c_str();
    });
    return found ? std::to_string(found->rank) + " of " + std::to_string(found->size) : "one";
  };
  EXPECT_EQ(process({}), "one");
  EXPECT_EQ(process({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "10.0.0.7"}}), "1 of 3");
  EXPECT_EQ(process({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}), "0 of 2");
  EXPECT_EQ(process({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), "1 of 2");
  EXPECT_EQ(process(slurm_step({})), "1 of 2");
  EXPECT_EQ(process({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "one");
  EXPECT_EQ(process({{"WORLD_SIZE", "4"}}), "one");
  EXPECT_EQ(process({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), "one");
  EXPECT_EQ(process({{"RANK", "captain"}, {"WORLD_SIZE", "4"}}), "one");
}

TEST(Launch, ReadsVariablesOfLaunchers) {
  const auto torch = launch({{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "10.0.0.7"},
                             {"MASTER_PORT", "1234"},
                             {"WITAN_JOB_SECRET", "s"},
                             {"OMPI_COMM_WORLD_RANK", "1"}});
  ASSERT_TRUE(torch);
  EXPECT_EQ(torch->rank, 3);
  EXPECT_EQ(torch->size, 4);
  EXPECT_EQ(torch->local_rank, 1);
  EXPECT_EQ(torch->master.address, "10.0.0.7");
  EXPECT_EQ(torch->master.port, 1234);
  EXPECT_EQ(torch->secret, "s");
  EXPECT_EQ(torch->engine, CommEngine::automatic);
  for (const CommEngine engine : {CommEngine::automatic, CommEngine::ucx, CommEngine::sockets})
    EXPECT_EQ(launch({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"WITAN_COMM_ENGINE", name_of(engine)}})->engine, engine);

  const auto mpi =
      launch({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(mpi);
  EXPECT_EQ(mpi->rank, 1);
  EXPECT_FALSE(mpi->local_rank);
  EXPECT_EQ(mpi->master.address, "127.0.0.1");
  EXPECT_EQ(mpi->master.port, 29500);

  const auto hydra = launch({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "3"}, {"MPI_LOCALNRANKS", "4"}});
  ASSERT_TRUE(hydra);
  EXPECT_EQ(hydra->rank, 3);
  EXPECT_EQ(hydra->size, 4);
  EXPECT_EQ(hydra->local_rank, 3);
  EXPECT_EQ(hydra->master.address, "127.0.0.1");

  const auto slurm = launch(slurm_step({}));
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->rank, 1);
  EXPECT_EQ(slurm->size, 2);
  EXPECT_EQ(slurm->local_rank, 0);
  EXPECT_EQ(slurm->master.address, "127.0.0.1");
}

TEST(Launch, PrefersMpirunToTheSlurmStepOfItsDaemon) {
  const auto hydra = launch(slurm_step({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "5"}}));
  EXPECT_EQ(hydra->rank, 5);
  const auto open_mpi = launch(slurm_step({{"OMPI_COMM_WORLD_RANK", "6"}, {"OMPI_COMM_WORLD_SIZE", "8"}}));
  EXPECT_EQ(open_mpi->rank, 6);
  // srun --mpi=pmi2 sets the same variables as Hydra, except the local rank.
  const auto slurm = launch(slurm_step({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}));
  EXPECT_EQ(slurm->local_rank, 0);
}

TEST(Launch, FindsTheFirstHostOfSlurmsList) {
  const auto host = [](const std::string& list) {
    return launch(slurm_step({{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", list}, {"WITAN_JOB_SECRET", "s"}}))
        ->master.address;
  };
  EXPECT_EQ(host("alpha,beta"), "alpha");
  EXPECT_EQ(host("node[07-12,15],other"), "node07");
  EXPECT_EQ(host("rack[1-2]node[3,5]"), "rack1node3");
  EXPECT_EQ(host("gpu-[9-10].cluster"), "gpu-9.cluster");
}

TEST(Launch, JobsOfOneHostUseDifferentPorts) {
  const auto port = [](const Variables& more) { return launch(slurm_step(more))->master.port; };
  const int one = port({{"SLURM_JOB_ID", "100"}});
  EXPECT_EQ(one, port({{"SLURM_JOB_ID", "100"}})) << "all ranks choose the same port";
  EXPECT_NE(one, port({{"SLURM_JOB_ID", "101"}}));
  EXPECT_NE(one, port({{"SLURM_JOB_ID", "100"}, {"SLURM_STEP_ID", "1"}}));
  EXPECT_GE(one, 20480);
  EXPECT_LT(one, 28672);
  EXPECT_EQ(port({{"SLURM_JOB_ID", "100"}, {"MASTER_PORT", "1234"}}), 1234);
}

TEST(Launch, KeepsTorchrunsPort) {
  const auto torch = launch({{"RANK", "0"},
                             {"WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(torch->master.port, 29501);
}

TEST(Launch, RemovesTheSecretFromTheEnvironment) {
  for (const char* variable : {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1234"})
    ::putenv(const_cast<char*>(variable));
  ::setenv("WITAN_JOB_SECRET", "a text that nobody guesses", 1);
  const char* const before = std::getenv("WITAN_JOB_SECRET");
  EXPECT_EQ(find_launch()->secret, "a text that nobody guesses");
  EXPECT_EQ(std::getenv("WITAN_JOB_SECRET"), nullptr) << "child processes do not inherit it";
  EXPECT_EQ(before[0], '\0') << "the kernel's copy of the initial environment";
  EXPECT_EQ(find_launch()->secret, "a text that nobody guesses") << "it is still known";
  for (const char* variable : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(variable);
}

TEST(Launch, RefusesInconsistentVariables) {
  EXPECT_EQ(refusal({{"RANK", "1"}}), "environment: RANK is set, but WORLD_SIZE is not");
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set; set it to the rank of this process"));
  EXPECT_EQ(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "environment: RANK = \"2\" must be a number from 0 to 1");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "two"}}),
            "environment: WORLD_SIZE = \"two\" must be a number from 1 to 65536");
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}),
              HasSubstr("the ranks are on several hosts, but MASTER_ADDR is not set"));
  EXPECT_THAT(refusal({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}}),
              HasSubstr("the ranks are on several hosts"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.7"}}),
              HasSubstr("set WITAN_JOB_SECRET to the same random text"));
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"WITAN_COMM_ENGINE", "mpi"}}),
            "environment: WITAN_COMM_ENGINE = \"mpi\" must be auto, ucx or sockets");
  EXPECT_EQ(refusal({{"WITAN_COMM_ENGINE", "mpi"}}),
            "environment: WITAN_COMM_ENGINE = \"mpi\" must be auto, ucx or sockets")
      << "for a single process too";
}

}  // namespace

// Some launchers bind processes to fewer cores than their share.

namespace {

using ::testing::HasSubstr;

Launch launch_by(const char* rank, const char* size) {
  return *find_launch([&](const char* name) -> const char* {
    if (std::string(name) == rank) return "0";
    return std::string(name) == size || std::string(name) == "SLURM_STEP_NUM_TASKS" ? "2" : nullptr;
  });
}

TEST(CoreBinding, ErrorsNameTheFix) {
  const Launch open_mpi = launch_by("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(binding_warning({1, 16, 2}, open_mpi),
            "warning: the launcher binds this process to 1 of 16 cores, though its share as one of 2 processes here is "
            "8: its threads take turns, which can make steps many times slower; start with mpirun --bind-to none");
  EXPECT_THAT(binding_warning({1, 16, 2}, launch_by("PMI_RANK", "PMI_SIZE")), HasSubstr("-bind-to none (Intel"));
  EXPECT_THAT(binding_warning({1, 16, 2}, launch_by("SLURM_PROCID", "SLURM_NTASKS")), HasSubstr("--cpu-bind=none"));
  EXPECT_THAT(binding_warning({1, 16, 2}, launch_by("RANK", "WORLD_SIZE")), HasSubstr("without taskset"));
}

TEST(CoreBinding, AcceptsAShareOrMore) {
  const Launch launch = launch_by("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  for (const CoreBinding& binding : {CoreBinding{16, 16, 2}, {8, 16, 2}, {1, 2, 2}, {1, 3, 2}, {1, 1, 4}, {0, 16, 2}})
    EXPECT_EQ(binding_warning(binding, launch), "") << binding.own << " of " << binding.host;
}

// A host as the system shows it: the containers and jobs of a process have their own cores.
TEST(CoreBinding, CountsTheCoresOfAContainer) {
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
  EXPECT_EQ(host("0::/job/step/task\n"), 1) << "the limit of an enclosing group";
  EXPECT_EQ(host("5:devices:/\n3:cpuset:/old\n0::/\n"), std::min(online, 2));
  EXPECT_EQ(host("no line of a group\n"), online);
}

TEST(CoreBinding, IsTheBindingOfThisThread) {
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
