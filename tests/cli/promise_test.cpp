// The measurements of one process match the plan of another.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

struct Finished {
  int code = -1;
  std::string out, err;
};

// Runs the program in its own process.
Finished run_program(const TempFolder& folder, std::vector<std::string> args) {
  const std::string out = folder / "out.txt", err = folder / "err.txt";
  args.insert(args.begin(), WITAN_PROGRAM);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int started = ::posix_spawn(&child, WITAN_PROGRAM, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(started, 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(out), read_text(err)};
}

class PromiseTest : public ::testing::Test {
 protected:
  PromiseTest() {
    for (int i = 0; i < 20; ++i) write_text(own_ / ("text/" + std::to_string(i) + ".txt"), some_text(60));
  }

  std::vector<std::string> config(const std::vector<std::string>& more) {
    std::vector<std::string> args = {
        "--runs-folder",   own_ / "runs", "--tokenizer-vocab-size", "300", "--num-layers", "2", "--hidden-size", "128",
        "--sample-tokens", "4",           "--global-batch-size",    "16",  "--seq-length", "64"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  // Plans in one process, trains in another, and compares.
  void expect_kept(const std::vector<std::string>& more) {
    fs::remove_all(own_ / "runs");
    std::vector<std::string> train = config(more), plan = config(more);
    train.insert(train.begin(), "train");
    train.insert(train.end(),
                 {"--data", own_ / "text", "--train-iters", "3", "--save-interval", "2", "--held-out-fraction", "0.1"});
    const Finished trained = run_program(own_, train);
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_TRUE(contains(trained.err, "as planned")) << trained.err;
    plan.insert(plan.begin(), "plan");
    plan.emplace_back("--json");
    const Finished planned = run_program(own_, plan);
    ASSERT_EQ(planned.code, 0) << planned.err;
    const auto promise = nlohmann::json::parse(planned.out);

    size_t ranks = 0;
    nlohmann::json end;
    std::istringstream lines(read_text(own_ / "runs/default/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto event = nlohmann::json::parse(line);
      if (event["kind"] == "end") end = event;
      if (event["kind"] != "measured_memory") continue;
      const auto& rank = promise["ranks"][event["rank"].get<size_t>()];
      EXPECT_EQ(event["peak"], rank["arena_bytes"]) << event;
      EXPECT_EQ(event["tags"], rank["tags"]) << event;
      ++ranks;
    }
    EXPECT_EQ(ranks, promise["ranks"].size());
    EXPECT_EQ(end["promised_resident"].get<double>(), promise["resident_bytes"].get<double>());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers keep their own memory
    EXPECT_LE(end["peak_resident"].get<double>(), end["promised_resident"].get<double>())
        << "all memory of the process";
    EXPECT_GT(end["peak_resident"].get<double>(), promise["ranks"][0]["arena_bytes"].get<double>() / 2);
#endif
  }

  TempFolder own_;
};

TEST_F(PromiseTest, HoldsForExpertParallelRanks) {
  expect_kept({"--ranks", "2", "--expert-model-parallel-size", "2", "--threads", "1"});
}

TEST_F(PromiseTest, HoldsForFourRanksAndFullRecomputation) {
  expect_kept({"--ranks", "4", "--expert-model-parallel-size", "2", "--threads", "1", "--recompute-granularity", "full",
               "--dtype", "bfloat16"});
}

TEST_F(PromiseTest, HoldsForADenseModelOnOneRankWithTwoThreads) {
  expect_kept({"--ranks", "1", "--num-experts", "0", "--threads", "2"});
}

// An evaluation gathers units in another order than a step, and has several batches.
TEST_F(PromiseTest, HoldsForSeveralEvaluationsWithShardedValues) {
  expect_kept({"--mesh", "shard=2", "--data-parallel-sharding-strategy", "optim_grads_params", "--threads", "1",
               "--position-embedding-type", "learned_absolute", "--max-position-embeddings", "64",
               "--untie-embeddings-and-output-weights", "--micro-batch-size", "4", "--eval-interval", "1"});
}

TEST_F(PromiseTest, HoldsForAPipelineOfExpertsWithACapacity) {
  expect_kept({"--mesh", "pipeline=2", "--threads", "1", "--moe-expert-capacity-factor", "0.5", "--micro-batch-size",
               "4", "--eval-interval", "2", "--log-params-norm"});
}

TEST_F(PromiseTest, PlansForAnotherMachineAndRefuses) {
  const std::vector<std::string> big = {"plan", "--num-layers",  "8",          "--seq-length", "1024", "--ranks",
                                        "2",    "--runs-folder", own_ / "runs"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = big;
    args.insert(args.end(), more.begin(), more.end());
    return witan(args);
  };
  const Said fits = with({"--memory", "64GB"});
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_TRUE(contains(fits.out, "of 59.6 GiB usable")) << fits.out;
  const Said refused = with({"--memory", "2GB"});
  EXPECT_EQ(refused.code, 8);
  EXPECT_TRUE(contains(refused.out, "of 1.86 GiB usable: IT DOES NOT FIT")) << refused.out;
  EXPECT_TRUE(contains(refused.err, "the run does not fit: it needs")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "The same training fits with --recompute-granularity")) << refused.err;
  const Said smallest = with({"--memory", "1MB", "--json"});
  EXPECT_EQ(smallest.code, 8);
  EXPECT_EQ(nlohmann::json::parse(smallest.out)["fits"], false);
  EXPECT_TRUE(contains(smallest.err, "no model fits into less")) << smallest.err;
  EXPECT_EQ(with({"--memory", "much"}).code, 3);
  for (const char* size : {"0", "8"}) {
    const Said unclear = with({"--memory", size});
    EXPECT_EQ(unclear.code, 3);
    EXPECT_TRUE(contains(unclear.err, "with its unit, as in 8GB")) << unclear.err;
  }
}

TEST_F(PromiseTest, ReportsTheTimeAndItsSource) {
  const Said said = witan({"plan", "--runs-folder", own_ / "runs", "--memory", "64GB"});
  EXPECT_EQ(said.code, 0) << said.err;
  for (const char* words : {"Predicted time", "a step ", "tokens/s", "of a step: experts", "from ceilings of"})
    EXPECT_TRUE(contains(said.out, words)) << words << " in\n" << said.out;
  const auto json = nlohmann::json::parse(witan({"plan", "--runs-folder", own_ / "runs", "--json"}).out);
  EXPECT_GT(json["step_seconds"].get<double>(), 0);
  EXPECT_GT(json["run_seconds"].get<double>(), json["step_seconds"].get<double>());
  EXPECT_EQ(json["fits"], true);
}

}  // namespace
}  // namespace witan::test
