// The program on GPUs, as users start it: runs that stop and resume, move to other devices, are killed, and do not fit.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>

#include "support/free_port.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "witan/base/files/file.h"
#include "witan/base/numbers/rng.h"
#include "witan/checkpoint/store.h"
#include "witan/report/events/metrics.h"
#include "witan/tensor/cuda.h"

namespace witan {
namespace {

using test::Program;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

struct Ended {
  int code = 0;
  std::string said;
};

// Runs of small models on synthetic text, each in a folder of its own.
class RunsOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
    std::ofstream text(own_ / "text.txt");
    const Philox rng(5, 5);
    const char* words[] = {"the ", "witan ", "meets ", "in ", "winter ", "and ", "speaks ", "of ", "grain.\n\n"};
    for (uint64_t word = 0; word < 20'000; ++word) text << words[rng.below(std::size(words), word)];
  }
  fs::path run_of(const std::string& runs) const { return own_ / runs / "default"; }
  // Flags and their values; `more` overrides the defaults.
  Words words(const std::string& runs, const Words& more) const {
    std::map<std::string, std::string> flags = {{"--data", own_ / "text.txt"},
                                                {"--runs-folder", own_ / runs},
                                                {"--num-layers", "2"},
                                                {"--hidden-size", "64"},
                                                {"--num-experts", "4"},
                                                {"--ffn-hidden-size", "96"},
                                                {"--seq-length", "64"},
                                                {"--micro-batch-size", "2"},
                                                {"--global-batch-size", "8"},
                                                {"--tokenizer-vocab-size", "300"},
                                                {"--held-out-fraction", "0.05"},
                                                {"--eval-iters", "1"},
                                                {"--sample-tokens", "0"},
                                                {"--lr-decay-iters", "200"},
                                                {"--keep-last", "9"}};
    for (size_t i = 0; i < more.size(); i += 2) flags[more[i]] = more[i + 1];
    Words all = {WITAN_PROGRAM, "train"};
    for (const auto& [flag, value] : flags) all.insert(all.end(), {flag, value});
    return all;
  }
  Ended train(const std::string& runs, const Words& more) const {
    Program program(words(runs, more), own_ / "log");
    if (!program.ends_within(100)) program.send(SIGKILL);
    const int code = program.wait();
    return {code, read_file(own_ / "log")};
  }
  void trains(const std::string& runs, const Words& more) const {
    const Ended ended = train(runs, more);
    ASSERT_EQ(ended.code, 0) << ended.said;
  }
  // Trains in processes with one rank and GPU each, and an environment variable for each; returns all output, and the
  // first exit code other than success.
  Ended train_in_processes(const std::string& runs, const Words& more, const Words& of_each) const {
    const int port = testing::free_port();
    std::vector<std::unique_ptr<Program>> ranks;
    for (size_t rank = 0; rank < of_each.size(); ++rank)
      ranks.push_back(std::make_unique<Program>(
          words(runs, more), own_ / cat("log-", rank),
          Words{cat("RANK=", rank), cat("LOCAL_RANK=", rank), cat("WORLD_SIZE=", of_each.size()),
                "MASTER_ADDR=127.0.0.1", cat("MASTER_PORT=", port), of_each[rank]}));
    Ended ended;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!ranks[rank]->ends_within(100)) ranks[rank]->send(SIGKILL);
      const int code = ranks[rank]->wait();
      if (ended.code == 0) ended.code = code;
      ended.said += read_file(own_ / cat("log-", rank));
    }
    return ended;
  }
  // The content of a checkpoint, over all ranks.
  std::string state(const std::string& runs, int64_t step) const {
    std::string bytes;
    for (int rank = 0; rank < 4; ++rank) {
      const fs::path shard =
          run_of(runs) / "checkpoints" / cat("step-", step) / cat("shard-0000", rank, ".safetensors");
      if (fs::exists(shard)) bytes += read_file(shard);
    }
    return bytes;
  }
  std::vector<double> losses(const std::string& runs) const {
    std::vector<double> all;
    for (const StepEvent& step : read_metrics(run_of(runs) / "metrics.jsonl").steps) all.push_back(step.loss);
    return all;
  }

  test::TempFolder own_;
};

// The largest relative difference.
double worst(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() && !a.empty() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]) / b[i]);
  return most;
}

struct Layout {
  const char *ranks, *expert;
};
const Layout kLayouts[] = {{"1", "1"}, {"2", "2"}};

// The first step after a start is eager and the second is recorded, so a resumed run mixes them differently.
TEST_F(RunsOnGpus, ResumeToTheBit) {
  for (const auto& [ranks, expert] : kLayouts)
    for (const char* dtype : {"float32", "bfloat16"}) {
      if (std::stoi(ranks) > cuda::devices()) continue;
      SCOPED_TRACE(cat(dtype, " on ", ranks));
      const std::string whole = cat("whole-", ranks, dtype), parts = cat("parts-", ranks, dtype);
      const auto flags = [&](const char* steps) {
        return Words{"--device",
                     "cuda",
                     "--dtype",
                     dtype,
                     "--ranks",
                     ranks,
                     "--expert-model-parallel-size",
                     expert,
                     "--deterministic",
                     "true",
                     "--train-iters",
                     steps,
                     "--save-interval",
                     "8"};
      };
      trains(whole, flags("12"));
      trains(parts, flags("8"));
      trains(parts, flags("12"));
      EXPECT_THAT(read_file(own_ / "log"), HasSubstr("step-8, step 8 of 12"));
      EXPECT_FALSE(state(whole, 12).empty());
      EXPECT_TRUE(state(whole, 8) == state(parts, 8)) << "one checkpoint was saved while step 9 was computed";
      EXPECT_TRUE(state(whole, 12) == state(parts, 12));
      EXPECT_EQ(losses(whole), losses(parts));
    }
}

TEST_F(RunsOnGpus, ResumeOnTheCpuAndOnOtherRanks) {
  for (const auto& [dtype, tolerance] : {std::pair{"float32", 1e-4}, std::pair{"bfloat16", 2e-2}}) {
    SCOPED_TRACE(dtype);
    const auto flags = [&](const char* device, const char* ranks, const char* steps) {
      return Words{"--device", device,          "--dtype", dtype, "--ranks", ranks, "--expert-model-parallel-size",
                   ranks,      "--train-iters", steps};
    };
    const std::string gpu = cat("gpu-", dtype);
    trains(gpu, flags("cuda", "1", "8"));
    const auto moved = [&](const std::string& name) {
      fs::create_directories(own_ / cat(name, "-", dtype));
      fs::copy(run_of(gpu), run_of(cat(name, "-", dtype)), fs::copy_options::recursive);
      return cat(name, "-", dtype);
    };
    const std::string cpu = moved("cpu"), cpus = moved("cpus"), gpus = moved("gpus");
    trains(gpu, flags("cuda", "1", "16"));
    trains(cpu, flags("cpu", "1", "16"));
    trains(cpus, flags("cpu", "2", "16"));
    EXPECT_LT(worst(losses(cpu), losses(gpu)), tolerance);
    EXPECT_LT(worst(losses(cpus), losses(gpu)), tolerance);
    if (cuda::devices() < 2) continue;
    trains(gpus, flags("cuda", "2", "16"));
    EXPECT_LT(worst(losses(gpus), losses(gpu)), tolerance);
  }
}

// A policy is trained on the log probabilities that sampling records: in batch-invariant mode with the same bits.
// Rewards differ whatever is sampled, so that every step trains.
TEST_F(RunsOnGpus, SampleWithTheLogProbabilitiesOfTraining) {
  std::ofstream rows(own_ / "chats.jsonl");
  for (int i = 0; i < 60; ++i)
    rows << R"({"messages": [{"role": "user", "content": "the grain of )" << i % 7
         << R"("}, {"role": "assistant", "content": "witan"}]})"
         << "\n";
  rows.close();
  write_file_atomically(own_ / "template.jinja",
                        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|endoftext|>{% endif %}"
                        "{% endfor %}");
  Program tokenizer({WITAN_PROGRAM, "tokenizer", "train", own_ / "text.txt", "--vocab-size", "300", "--output",
                     own_ / "tokenizer.json"},
                    own_ / "log");
  ASSERT_TRUE(tokenizer.ends_within(100));
  ASSERT_EQ(tokenizer.wait(), 0) << read_file(own_ / "log");
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const std::string run = cat("sampled-", dtype);
    trains(run, {"--device",
                 "cuda",
                 "--dtype",
                 dtype,
                 "--ranks",
                 "1",
                 "--train-iters",
                 "3",
                 "--data",
                 own_ / "chats.jsonl",
                 "--sft",
                 "true",
                 "--packing",
                 "none",
                 "--tokenizer",
                 own_ / "tokenizer.json",
                 "--chat-template",
                 own_ / "template.jinja",
                 "--objective",
                 "policy",
                 "--rollouts",
                 "true",
                 "--reward",
                 "command",
                 "--reward-command",
                 "awk '{print NR % 3}'",
                 "--num-generations",
                 "4",
                 "--max-completion-length",
                 "20",
                 "--batch-invariant-mode",
                 "true"});
    const std::vector<StepEvent> steps = read_metrics(run_of(run) / "metrics.jsonl").steps;
    ASSERT_EQ(steps.size(), 3u);
    for (const StepEvent& step : steps) EXPECT_EQ(step.scalars.get("logprob_difference"), 0.0);
  }
}

// The default recipe, narrower. Roundings differ, and every update amplifies the differences.
TEST_F(RunsOnGpus, FirstFiftyLossesAgreeWithTheCpu) {
  for (const auto& [dtype, tolerance] : {std::pair{"float32", 1e-3}, std::pair{"bfloat16", 2e-2}}) {
    const auto flags = [&](const char* device) {
      return Words{"--device",          device, "--dtype",       dtype, "--ranks",       "1",
                   "--num-layers",      "4",    "--hidden-size", "128", "--num-experts", "8",
                   "--ffn-hidden-size", "256",  "--seq-length",  "128", "--train-iters", "50"};
    };
    const std::string gpu = cat("gpu-", dtype), cpu = cat("cpu-", dtype);
    trains(gpu, flags("cuda"));
    trains(cpu, flags("cpu"));
    const auto on_gpu = losses(gpu), on_cpu = losses(cpu);
    ASSERT_EQ(on_gpu.size(), 50u);
    EXPECT_LT(on_gpu.back(), 0.75 * on_gpu.front()) << "it learns";
    EXPECT_LT(worst(on_gpu, on_cpu), tolerance) << dtype;
    std::cout << dtype << ": losses of 50 steps on a GPU and on the CPU differ by " << worst(on_gpu, on_cpu)
              << " at most, relative\n";
    RecordProperty(cat("worst_", dtype), cat(worst(on_gpu, on_cpu)));
  }
}

// The run is refused before text is read, a step is run, or anything is written.
TEST_F(RunsOnGpus, AreRefusedWithThePlanIfTheyDoNotFit) {
  const Ended huge = train("huge", {"--device", "cuda", "--hidden-size", "8192", "--num-layers", "200"});
  EXPECT_EQ(huge.code, static_cast<int>(ExitCode::out_of_memory)) << huge.said;
  EXPECT_THAT(huge.said, HasSubstr("the run does not fit: it needs "));
  EXPECT_THAT(huge.said, HasSubstr(" of each GPU (arena "));
  EXPECT_THAT(huge.said, HasSubstr("optimizer")) << "the table of the plan";
  EXPECT_FALSE(fs::exists(run_of("huge") / "metrics.jsonl"));
}

TEST_F(RunsOnGpus, AreRefusedIfOthersUseTheMemory) {
  const Words flags = {"--device", "cuda", "--ranks", "1", "--train-iters", "2"};
  // No room for the run; no room for CUDA's context.
  for (const auto& [mib, words] :
       {std::pair{700, "the run does not fit: it needs "}, std::pair{100, "GPU 0 has no "}}) {  // room, or memory left
    void* taken = nullptr;
    const int64_t left = int64_t{mib} << 20;
    ASSERT_EQ(cudaMalloc(&taken, static_cast<size_t>(cuda::free_memory(0) - left)), cudaSuccess);
    const Ended refused = train("crowded", flags);
    cudaFree(taken);
    EXPECT_EQ(refused.code, static_cast<int>(ExitCode::out_of_memory)) << refused.said;
    EXPECT_THAT(refused.said, HasSubstr(words));
    EXPECT_FALSE(fs::exists(run_of("crowded") / "metrics.jsonl"));
  }
  trains("crowded", flags);
}

TEST_F(RunsOnGpus, CheckStatesOnEveryRank) {
  if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  for (const char* expert : {"1", "2"})
    trains(cat("checked-", expert), {"--device", "cuda", "--ranks", "2", "--dtype", "bfloat16", "--train-iters", "4",
                                     "--expert-model-parallel-size", expert, "--check-states", "true"});
}

// Processes of one host exchange experts' rows as threads do, in one recorded step, with the same losses; if told to
// use NCCL, as between hosts, they have the same losses too.
TEST_F(RunsOnGpus, AreTheSameInProcessesAsInThreads) {
  if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  const Words flags = {"--device",        "cuda", "--dtype",       "bfloat16", "--expert-model-parallel-size", "2",
                       "--deterministic", "true", "--train-iters", "12"};
  Words of_threads = flags;
  of_threads.insert(of_threads.end(), {"--ranks", "2"});
  trains("threads", of_threads);
  EXPECT_THAT(read_file(own_ / "log"), HasSubstr("captured as one CUDA graph; rows of experts are written directly"));
  // Each process sees all GPUs, or only its own.
  for (const auto& [runs, of_each] :
       {std::pair{"processes", Words{"WITAN_COMM_PEERS=1", "WITAN_COMM_PEERS=1"}},
        std::pair{"one-gpu-each", Words{"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"}}}) {
    const Ended processes = train_in_processes(runs, flags, of_each);
    ASSERT_EQ(processes.code, 0) << processes.said;
    EXPECT_THAT(processes.said, HasSubstr("captured as one CUDA graph; rows of experts are written directly"));
    EXPECT_EQ(losses(runs), losses("threads"));
    EXPECT_TRUE(state(runs, 12) == state("threads", 12));
  }

  const Ended by_nccl = train_in_processes("nccl", flags, {"WITAN_COMM_PEERS=0", "WITAN_COMM_PEERS=0"});
  ASSERT_EQ(by_nccl.code, 0) << by_nccl.said;
  EXPECT_THAT(by_nccl.said, HasSubstr("eager, because experts' rows are exchanged over NCCL, which needs their counts "
                                      "on the host (WITAN_COMM_PEERS = 0)"));
  EXPECT_EQ(losses("nccl"), losses("threads"));

  Words in_parts = flags;
  in_parts.insert(in_parts.end(), {"--moe-exchange-factor", "1.25"});
  const Ended parts = train_in_processes("parts", in_parts, {"WITAN_COMM_PEERS=0", "WITAN_COMM_PEERS=0"});
  ASSERT_EQ(parts.code, 0) << parts.said;
  EXPECT_THAT(parts.said, HasSubstr("captured as one CUDA graph; rows of experts are exchanged with NCCL"));
  EXPECT_EQ(losses("parts"), losses("threads"));
  EXPECT_TRUE(state("parts", 12) == state("threads", 12));

  const Ended by_host = train_in_processes("by-host", flags, {"WITAN_COMM_PEERS=host", "WITAN_COMM_PEERS=host"});
  ASSERT_EQ(by_host.code, 0) << by_host.said;
  EXPECT_THAT(by_host.said, HasSubstr("captured as one CUDA graph; rows of experts go through memory of the host"));
  EXPECT_EQ(losses("by-host"), losses("threads"));
  EXPECT_TRUE(state("by-host", 12) == state("threads", 12));

  const Ended mixed = train_in_processes("mixed", flags, {"WITAN_COMM_PEERS=0", "WITAN_COMM_PEERS=1"});
  EXPECT_EQ(mixed.code, static_cast<int>(ExitCode::config)) << mixed.said;
  EXPECT_THAT(mixed.said, HasSubstr("WITAN_COMM_PEERS = 0 on rank 0, but 1 on rank 1"));
}

// One process per GPU, one of which is killed while both replay their steps.
class ProcessesOnGpus : public RunsOnGpus, public ::testing::WithParamInterface<size_t> {};

TEST_P(ProcessesOnGpus, EndWhenOneIsKilledAndResumeFromTheLastCheckpoint) {
  if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  const auto start = [&](const char* steps, size_t rank, int port) {
    return std::make_unique<Program>(
        words("runs", {"--device", "cuda", "--dtype", "bfloat16", "--expert-model-parallel-size", "2", "--train-iters",
                       steps, "--save-interval", "20"}),
        own_ / cat("log-", rank),
        Words{cat("RANK=", rank), cat("LOCAL_RANK=", rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
              cat("MASTER_PORT=", port)});
  };
  const auto newest = [&] {
    std::vector<std::string> warnings;
    const auto checkpoint = latest_checkpoint(run_of("runs") / "checkpoints", warnings);
    return checkpoint ? checkpoint->step : 0;
  };
  const size_t killed = GetParam(), other = 1 - killed;
  std::unique_ptr<Program> ranks[2];
  const int port = testing::free_port();
  for (size_t rank : {0, 1}) ranks[rank] = start("1000000", rank, port);
  ASSERT_TRUE(ranks[other]->reaches([&] { return newest() >= 40; }, 100)) << read_file(own_ / "log-0");
  ranks[killed]->send(SIGKILL);
  ASSERT_TRUE(ranks[other]->ends_within(30)) << "a process that is gone must be noticed";
  EXPECT_EQ(ranks[other]->wait(), static_cast<int>(ExitCode::rank_lost));
  const std::string said = read_file(own_ / cat("log-", other));
  EXPECT_THAT(said, HasSubstr(cat("rank ", killed)));
  EXPECT_EQ(said.find("error:"), said.rfind("error:")) << "one cause: " << said;
  std::cout << said.substr(said.rfind("witan: "));

  const int64_t saved = newest();
  const int again = testing::free_port();
  for (size_t rank : {0, 1}) ranks[rank] = start(cat(saved + 3).c_str(), rank, again);
  for (size_t rank : {0, 1}) ASSERT_TRUE(ranks[rank]->ends_within(100)) << "rank " << rank;
  for (size_t rank : {0, 1}) EXPECT_EQ(ranks[rank]->wait(), 0) << read_file(own_ / cat("log-", rank));
  EXPECT_EQ(newest(), saved + 3);
}

INSTANTIATE_TEST_SUITE_P(Killed, ProcessesOnGpus, ::testing::Values(0, 1));

}  // namespace
}  // namespace witan
