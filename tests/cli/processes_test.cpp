// witan train in several processes, as a launcher starts it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "support/comes_true.h"
#include "support/free_port.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class ProcessesTest : public ::testing::Test {
 protected:
  ProcessesTest() { write_text(own_ / "text.txt", some_text(800)); }

  // Uses --expert-model-parallel-size 2, so that both kinds of shards are exchanged.
  std::vector<std::string> words(const std::string& runs, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = words_in(
        "--train-iters 4 --save-interval 2 --seq-length 16 --hidden-size 16 --num-layers 1 --num-experts 4 "
        "--ffn-hidden-size 16 --sample-tokens 3 --tokenizer-vocab-size 300 --held-out-fraction 0.05 --threads 1 "
        "--micro-batch-size 1 --global-batch-size 4 --expert-model-parallel-size 2",
        {WITAN_PROGRAM, "train", "--data", own_ / "text.txt", "--runs-folder", own_ / runs});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  pid_t start(std::vector<std::string> args, const std::vector<std::string>& variables, const std::string& log) const {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child != 0) return child;
    for (const std::string& variable : variables) ::putenv(const_cast<char*>(variable.c_str()));
    if (!std::freopen((own_ / log).c_str(), "w", stderr) || !std::freopen("/dev/null", "w", stdout)) ::_exit(126);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  static int end_of(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // The exit codes of this many ranks, with logs rank-0.log …
  std::vector<int> launch(const std::vector<std::vector<std::string>>& ranks) const {
    const int port = testing::free_port();
    std::vector<pid_t> children;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      children.push_back(start(ranks[rank],
                               {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(ranks.size()),
                                "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port)},
                               "rank-" + std::to_string(rank) + ".log"));
    std::vector<int> codes;
    for (const pid_t child : children) codes.push_back(end_of(child));
    return codes;
  }

  // Results of training, without measured values.
  std::string metrics(const std::string& runs) const {
    std::string text;
    std::istringstream lines(read_text(own_ / runs / "default/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto event = nlohmann::json::parse(line);
      for (const char* key : {"kind", "step", "loss", "grad_norm", "bits_per_byte", "text", "load", "peak", "tags"})
        if (event.contains(key)) text += event[key].dump() + " ";
      text += "\n";
    }
    return text;
  }
  std::vector<std::string> bench_step(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = words("none", more);
    all[1] = "bench";
    const std::vector<std::string> step = {"step", "--steps", "1", "--vocab-size", "300", "--json", own_ / "step.json"};
    all.insert(all.begin() + 2, step.begin(), step.end());
    return all;
  }
  // The first step's measurements and the ranks measured.
  std::string measured() const {
    const auto json = nlohmann::json::parse(read_text(own_ / "step.json"));
    fs::remove(own_ / "step.json");
    return json["benchmark"].get<std::string>() + ": " + json["first_loss"].dump() + ", " + json["last_loss"].dump();
  }
  std::string checkpoint(const std::string& runs) const {
    std::string bytes;
    for (const char* file : {"shard-00000.safetensors", "shard-00001.safetensors", "tokenizer.json"})
      bytes += read_text(own_ / runs / "default/checkpoints/step-4" / file);
    return bytes;
  }

  TempFolder own_;
};

TEST_F(ProcessesTest, TrainLikeThreads) {
  ASSERT_EQ(end_of(start(words("threads", {"--ranks", "2"}), {}, "threads.log")), 0) << read_text(own_ / "threads.log");
  EXPECT_EQ(launch({words("processes"), words("processes")}), (std::vector<int>{0, 0}))
      << read_text(own_ / "rank-0.log") << read_text(own_ / "rank-1.log");
  EXPECT_EQ(read_text(own_ / "rank-1.log"), "") << "only rank 0 prints";
  EXPECT_TRUE(contains(read_text(own_ / "rank-0.log"), "messages     between processes by "))
      << read_text(own_ / "rank-0.log");
  EXPECT_FALSE(checkpoint("threads").empty());
  EXPECT_TRUE(checkpoint("processes") == checkpoint("threads"));
  EXPECT_EQ(metrics("processes"), metrics("threads"));

  // The run has finished; it continues from the checkpoint with the same number of processes.
  EXPECT_EQ(launch({words("processes"), words("processes")}), (std::vector<int>{0, 0}));
  auto longer = words("processes");
  *(std::find(longer.begin(), longer.end(), "--train-iters") + 1) = "6";
  EXPECT_EQ(launch({longer, longer}), (std::vector<int>{0, 0})) << read_text(own_ / "rank-0.log");
  EXPECT_TRUE(fs::exists(own_ / "processes/default/checkpoints/step-6/shard-00001.safetensors"));
}

TEST_F(ProcessesTest, WithSeveralThreadsTrainLikeThreads) {
  ASSERT_EQ(end_of(start(words("threads", {"--ranks", "4"}), {}, "threads.log")), 0) << read_text(own_ / "threads.log");
  const auto pair = words("processes", {"--ranks", "4"});
  EXPECT_EQ(launch({pair, pair}), (std::vector<int>{0, 0}))
      << read_text(own_ / "rank-0.log") << read_text(own_ / "rank-1.log");
  EXPECT_FALSE(checkpoint("threads").empty());
  EXPECT_TRUE(checkpoint("processes") == checkpoint("threads"));
  EXPECT_EQ(metrics("processes"), metrics("threads"));
}

TEST_F(ProcessesTest, WithSeveralThreadsMeasureAStepTogether) {
  ASSERT_EQ(end_of(start(bench_step({"--ranks", "4"}), {}, "threads.log")), 0) << read_text(own_ / "threads.log");
  const std::string threads = measured();
  EXPECT_EQ(launch({bench_step({"--ranks", "4"}), bench_step({"--ranks", "4"})}), (std::vector<int>{0, 0}))
      << read_text(own_ / "rank-0.log") << read_text(own_ / "rank-1.log");
  EXPECT_EQ(measured(), threads);
  // Different settings of processes are named, as for a run.
  const auto codes = launch({bench_step({"--ranks", "2"}), bench_step({"--ranks", "2", "--kernels"})});
  EXPECT_EQ(codes, (std::vector<int>{3, 3}));
  EXPECT_TRUE(contains(read_text(own_ / "rank-0.log"), "kernels = false on rank 0, but true on rank 1"))
      << read_text(own_ / "rank-0.log");
}

// The secret of the job is in no output, in no file, and in nothing that other programs can see of a process.
TEST_F(ProcessesTest, KeepTheirSecret) {
  const std::string secret = "8b1f0c4e-nobody-guesses-this";
  const std::string port = std::to_string(testing::free_port());
  const auto begin = [&](int rank, const std::vector<std::string>& args) {
    return start(args,
                 {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
                  "WITAN_JOB_SECRET=" + secret},
                 "rank-" + std::to_string(rank) + ".log");
  };
  // The process waits for rank 0 meanwhile.
  const pid_t one = begin(1, words("secret", {"--log-interval", "1"}));
  const fs::path process = fs::path("/proc") / std::to_string(one);
  EXPECT_TRUE(comes_true([&] {
    return contains(read_text(process / "cmdline"), "train") &&
           contains(read_text(process / "environ"), "WITAN_JOB_SECRET=") &&
           !contains(read_text(process / "environ"), secret);
  })) << "the kernel does not show it once the process has read it";
  EXPECT_FALSE(contains(read_text(process / "cmdline"), secret));
  const pid_t zero = begin(0, words("secret", {"--log-interval", "1"}));
  EXPECT_EQ(end_of(zero), 0) << read_text(own_ / "rank-0.log");
  EXPECT_EQ(end_of(one), 0) << read_text(own_ / "rank-1.log");
  // A stranger gets the reason for its refusal, and rank 0 reports it; neither reveals the right values.
  const pid_t lonely = begin(0, words("lonely", {"--distributed-timeout-minutes", "0.05"}));
  EXPECT_EQ(end_of(lonely), 7);
  EXPECT_TRUE(contains(read_text(own_ / "rank-0.log"), "rank 1 of 2 did not connect"));
  int files = 0;
  for (const auto& file : fs::recursive_directory_iterator(own_.path())) {
    if (!file.is_regular_file()) continue;
    ++files;
    EXPECT_FALSE(contains(read_text(file.path()), secret)) << file.path();
  }
  EXPECT_GT(files, 10);
}

// A signal to one process stops all, and all have the same exit code.
TEST_F(ProcessesTest, EndWithTheSameCodeAfterASignalToAnyOfThem) {
  const std::string port = std::to_string(testing::free_port());
  auto endless = words("asked", {"--eval-interval", "0"});
  *(std::find(endless.begin(), endless.end(), "--train-iters") + 1) = "1000000";
  *(std::find(endless.begin(), endless.end(), "--save-interval") + 1) = "0";
  const auto begin = [&](int rank) {
    return start(endless,
                 {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port},
                 "rank-" + std::to_string(rank) + ".log");
  };
  const pid_t zero = begin(0), one = begin(1);
  const fs::path recorded = own_ / "asked/default/metrics.jsonl";
  EXPECT_TRUE(comes_true([&] { return contains(read_text(recorded), "\"kind\":\"step\""); }));
  ::kill(one, SIGINT);
  EXPECT_EQ(end_of(zero), 130) << read_text(own_ / "rank-0.log");
  EXPECT_EQ(end_of(one), 130) << read_text(own_ / "rank-1.log");
  EXPECT_TRUE(contains(read_text(own_ / "rank-0.log"), "Another process was asked to stop: saving"))
      << read_text(own_ / "rank-0.log");
  EXPECT_EQ(launch({words("interval", {"--exit-interval", "3"}), words("interval", {"--exit-interval", "3"})}),
            (std::vector<int>{75, 75}));
  EXPECT_TRUE(contains(read_text(own_ / "rank-0.log"), "exit_interval: saving")) << read_text(own_ / "rank-0.log");
}

// mpirun of Open MPI, of MPICH (Hydra), and the default one.
class MpirunTest : public ProcessesTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (end_of(start({"sh", "-c", std::string("command -v ") + GetParam()}, {}, "which.log")) != 0)
      GTEST_SKIP() << GetParam() << " is not installed";
  }
  // By default Open MPI refuses to run as root or to start more processes than cores.
  int mpirun(const std::vector<std::string>& command, const std::string& log) const {
    std::vector<std::string> all = {GetParam(), "-n", "4"};
    all.insert(all.end(), command.begin(), command.end());
    return end_of(start(
        all, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1"},
        log));
  }
};

TEST_P(MpirunTest, TrainsLikeThreads) {
  ASSERT_EQ(end_of(start(words("threads", {"--ranks", "4"}), {}, "threads.log")), 0) << read_text(own_ / "threads.log");
  ASSERT_EQ(mpirun(words("mpi"), "mpi.log"), 0) << read_text(own_ / "mpi.log");
  EXPECT_TRUE(checkpoint("mpi") == checkpoint("threads"));
  EXPECT_EQ(metrics("mpi"), metrics("threads"));
}

TEST_P(MpirunTest, EndsWithAnErrorIfARankFails) {
  EXPECT_NE(mpirun(words("mpi", {"--data", own_ / "nowhere"}), "mpi.log"), 0);
  EXPECT_TRUE(contains(read_text(own_ / "mpi.log"), "nowhere")) << read_text(own_ / "mpi.log");
}

TEST_P(MpirunTest, BenchStepMeasuresAllProcessesTogether) {
  ASSERT_EQ(end_of(start(bench_step({"--ranks", "4"}), {}, "threads.log")), 0) << read_text(own_ / "threads.log");
  const std::string threads = measured();
  EXPECT_TRUE(threads.starts_with("step, 4 ranks, ")) << threads;
  ASSERT_EQ(mpirun(bench_step(), "mpi.log"), 0) << read_text(own_ / "mpi.log");
  EXPECT_EQ(measured(), threads);
}

INSTANTIATE_TEST_SUITE_P(Launchers, MpirunTest, ::testing::Values("mpirun", "mpirun.openmpi", "mpirun.mpich"),
                         [](const auto& launcher) {
                           std::string name = launcher.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

// Every process refuses by itself, without waiting five minutes for rank 0.
TEST_F(ProcessesTest, RefuseImpossibleTrainingBeforeTheyMeet) {
  const pid_t child =
      start(words("refused"), {"RANK=1", "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=9"}, "rank-1.log");
  EXPECT_EQ(end_of(child), 3);
  EXPECT_TRUE(
      contains(read_text(own_ / "rank-1.log"),
               "process 1 of 3: expert_model_parallel_size = 2 does not divide the 3 ranks of a pipeline stage"))
      << read_text(own_ / "rank-1.log");
}

TEST_F(ProcessesTest, OnlyTheFailedRankReportsTheCause) {
  auto nowhere = words("lost");
  *(std::find(nowhere.begin(), nowhere.end(), "--data") + 1) = own_ / "nowhere";
  EXPECT_EQ(launch({nowhere, nowhere}), (std::vector<int>{4, 7}));
  EXPECT_TRUE(contains(read_text(own_ / "rank-1.log"), "stopped, as rank 0 on ")) << read_text(own_ / "rank-1.log");

  EXPECT_EQ(launch({words("lost", {"--ranks", "3"}), words("lost", {"--ranks", "3"})})[0], 3);
  EXPECT_TRUE(contains(read_text(own_ / "rank-0.log"), "the launcher started 2 processes"));
}

}  // namespace
}  // namespace witan::test
