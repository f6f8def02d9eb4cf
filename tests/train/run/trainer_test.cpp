#include "witan/train/run/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/run/run_support.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/store.h"
#include "witan/report/metrics.h"
#include "witan/train/run/saved_config.h"
#include "witan/train/run/train_state.h"
#include "witan/train/signals/signals.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using testing::small_config;

// Runs of a small model on made-up text, each in a folder of its own below one temporary folder.
class Trainer : public ::testing::Test {
 protected:
  Trainer() {
    std::ofstream text(folder_ / "text.jsonl");
    const Philox rng(5, 5);
    const char* words[] = {"the ", "witan ", "meets ", "in ", "winter ", "and ", "speaks ", "of ", "grain. "};
    for (uint64_t row = 0; row < 60; ++row) {
      text << "{\"text\": \"";
      for (uint64_t word = 0; word < 40; ++word) text << words[rng.below(std::size(words), row * 100 + word)];
      text << "\"}\n";
    }
  }

  RunConfig config(const std::string& run) {
    RunConfig config = small_config();
    config.model.vocab_size = 0;
    config.data.data = (folder_ / "text.jsonl").string();
    config.data.bpe.vocab_size = 300;
    config.data.held_out_fraction = 0.1;
    config.train.run = run;
    config.train.runs_folder = folder_.path().string();
    config.train.global_batch_size = 8;
    config.train.train_iters = 12;
    config.optimizer.lr_decay_iters = 12;  // the same schedule, however long this call trains
    config.train.save_interval = 4;
    config.train.eval_interval = 5;
    config.train.keep_last = 100;
    config.train.sample_prompt = "the witan ";
    config.parallel = {2, 2, 1};
    return config;
  }

  RunResult run(RunConfig config) {
    std::FILE* quiet = std::fopen("/dev/null", "w");
    RunResult result;
    {
      Progress progress(quiet, progress_options(quiet));
      const RunFolder folder(config.train.runs_folder, config.train.run);
      const RunData data = prepare_run_data(config, folder, progress);
      const ResolvedConfig resolved = resolve(config, {.cores = 2, .vocabulary = data.tokenizer->vocab_size()});
      write_file_atomically(folder.config(), config_to_save(resolved));
      const Plan plan = make_plan(resolved);
      result = train(resolved, run_plan(plan), data, find_start(folder),
                     RunEvent{.name = config.train.run,
                              .started = "2026-01-01T00:00:00Z",
                              .config_hash = "h",
                              .total_steps = config.train.train_iters},
                     progress);
    }
    std::fclose(quiet);
    return result;
  }

  fs::path checkpoint(const std::string& run, int64_t step) {
    return folder_ / run / "checkpoints" / cat("step-", step);
  }
  // Everything that a checkpoint holds but the time it took to get there.
  std::string weights(const std::string& run, int64_t step) {
    const fs::path second = checkpoint(run, step) / "shard-00001.safetensors";  // not of a run of one rank
    return read_file(checkpoint(run, step) / "shard-00000.safetensors") +
           (fs::exists(second) ? read_file(second) : std::string());
  }
  std::vector<StepEvent> steps(const std::string& run) { return read_metrics(folder_ / run / "metrics.jsonl").steps; }

  void expect_same_steps(const std::string& a, const std::string& b) {
    const auto x = steps(a), y = steps(b);
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(x[i].step, y[i].step);
      EXPECT_EQ(x[i].loss, y[i].loss) << "step " << x[i].step;
      EXPECT_EQ(x[i].grad_norm, y[i].grad_norm) << "step " << x[i].step;
    }
  }

  TempFolder folder_;
};

TEST_F(Trainer, TrainsEvaluatesSamplesAndSaves) {
  const RunResult result = run(config("a"));
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.step, 12);
  EXPECT_EQ(result.resumed_from, 0);
  EXPECT_FALSE(result.sample.empty());
  const Metrics metrics = read_metrics(folder_ / "a" / "metrics.jsonl");
  ASSERT_EQ(metrics.steps.size(), 12u);
  EXPECT_LT(metrics.steps.back().loss, metrics.steps.front().loss);
  EXPECT_EQ(metrics.evals.size(), 3u);  // steps 5, 10, 12
  EXPECT_EQ(metrics.experts.size(), 12u);
  ASSERT_EQ(metrics.saves.size(), 3u);  // steps 4, 8, 12
  for (const SaveEvent& save : metrics.saves) EXPECT_LE(0, save.paused_s) << save.step;
  EXPECT_NE(read_file(folder_ / "a" / "train.log").find("checkpoints/step-4 in "), std::string::npos);
  EXPECT_NE(read_file(folder_ / "a" / "train.log").find(" s, training paused "), std::string::npos);
  EXPECT_EQ(metrics.memory.size(), 2u);
  ASSERT_EQ(metrics.baselines.size(), 1u);
  EXPECT_GT(metrics.baselines[0].bits_per_byte, 0);
  EXPECT_TRUE(fs::exists(checkpoint("a", 12) / "manifest.json"));
}

TEST_F(Trainer, ResumesToTheBit) {
  run(config("whole"));
  RunConfig first = config("parts");
  first.train.train_iters = 8;
  run(first);
  const RunResult second = run(config("parts"));
  EXPECT_EQ(second.resumed_from, 8);
  EXPECT_EQ(weights("whole", 8), weights("parts", 8)) << "one is saved while step 9 is computed, one at the end";
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  expect_same_steps("whole", "parts");
}

// Pools of the even load overflow in every step, the last before a save, and the first after it, among them. A run may
// resume with pools of another size, or without.
TEST_F(Trainer, ResumesToTheBitAfterAStepThatRanAgainInWaves) {
  RunConfig whole = config("whole"), first = config("parts");
  whole.parallel.deterministic = first.parallel.deterministic = true;
  RunConfig second = first;
  run(whole);
  first.model.moe.moe_pool_factor = 1;
  first.train.train_iters = 7;
  run(first);
  second.model.moe.moe_pool_factor = 1.01;
  EXPECT_EQ(run(second).resumed_from, 7);
  EXPECT_EQ(weights("whole", 4), weights("parts", 4)) << "saved while a step ran twice";
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  expect_same_steps("whole", "parts");
  const std::string log = read_file(folder_ / "parts" / "train.log");
  for (const int step : {5, 7, 8, 12})
    EXPECT_NE(log.find(cat("pool overflow: step ", step, " ran again in ")), std::string::npos) << step;
  EXPECT_EQ(steps("parts")[6].pool_overflows, 7) << "all steps of the call";
  EXPECT_EQ(steps("parts")[11].pool_overflows, 5);
  EXPECT_FALSE(steps("whole")[6].pool_overflows);
}

// The history that spikes are found by is saved and restored; a skipped step is no update, and is told of.
TEST_F(Trainer, ResumesAmongSpikesToTheBit) {
  const auto spiky = [&](const std::string& name) {
    RunConfig config = this->config(name);
    config.optimizer.skip_step_sigma = 0.5;
    config.optimizer.skip_step_window = 6;
    return config;
  };
  run(spiky("whole"));
  RunConfig first = spiky("parts");
  first.train.train_iters = 8;
  run(first);
  EXPECT_EQ(run(spiky("parts")).resumed_from, 8);
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  expect_same_steps("whole", "parts");
  const auto all = steps("whole");
  const auto skipped = std::count_if(all.begin(), all.end(), [](const StepEvent& step) { return step.skipped; });
  EXPECT_GT(skipped, 0);
  const TrainState state = TrainState::from_json(open_checkpoint(checkpoint("parts", 12)).scalars);
  EXPECT_EQ(state.updates, 12 - skipped);
  EXPECT_EQ(state.spikes.steps, 12);
  EXPECT_EQ(state.spikes.losses.size(), 6u);
  EXPECT_NE(read_file(folder_ / "whole" / "train.log").find("was a spike (skip_step_sigma); the step was skipped"),
            std::string::npos);
}

// A run that begins with overflows, and is saved among them: the scale, its counts and the masters go on.
TEST_F(Trainer, ResumesInFloat16AmongOverflowsToTheBit) {
  const auto narrow = [&](const std::string& name) {
    RunConfig config = this->config(name);
    config.model.dtype = "float16";
    config.optimizer.initial_loss_scale = 0x1p28;
    config.optimizer.loss_scale_window = 2;
    config.optimizer.hysteresis = 1;
    config.train.most_skipped = 2;  // more are skipped in a row while the scale falls
    return config;
  };
  run(narrow("whole"));
  RunConfig first = narrow("parts");
  first.train.train_iters = 4;
  run(first);
  const TrainState saved = TrainState::from_json(open_checkpoint(checkpoint("parts", 4)).scalars);
  EXPECT_GT(saved.loss_scaler.scale, 0);
  EXPECT_EQ(saved.updates, 0) << "in the midst of overflows";
  EXPECT_EQ(run(narrow("parts")).resumed_from, 4);
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  const auto all = steps("whole"), again = steps("parts");
  EXPECT_FALSE(all.back().skipped && all[10].skipped) << "the scale was found";
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].loss, again[i].loss) << i;
    EXPECT_EQ(all[i].skipped, again[i].skipped) << i;
    EXPECT_EQ(all[i].loss_scale, again[i].loss_scale) << i;
  }
  EXPECT_EQ(all[0].loss_scale, 0x1p27);
}

TEST_F(Trainer, GivesUpWhenTheLossScaleIsAtItsLeast) {
  RunConfig config = this->config("nan");
  config.model.dtype = "float16";
  config.optimizer.initial_loss_scale = 0x1p33;
  config.optimizer.min_loss_scale = 0x1p31;
  config.optimizer.hysteresis = 1;
  config.train.most_skipped = 3;
  const std::string said = message_of<DivergedError>([&] { run(config); });
  EXPECT_NE(said.find("step 4: 3 steps in a row had gradients that were not finite"), std::string::npos) << said;
}

// Moments go on in another dtype than the one that they were saved in.
TEST_F(Trainer, ResumesWithMomentsInBfloat16) {
  RunConfig first = config("moments");
  first.train.train_iters = 8;
  run(first);
  RunConfig second = config("moments");
  second.optimizer.exp_avg_dtype = second.optimizer.exp_avg_sq_dtype = "bfloat16";
  EXPECT_EQ(run(second).resumed_from, 8);
  EXPECT_LT(steps("moments").back().loss, steps("moments").front().loss);
}

// Two optimizers, sharded by elements and by matrices: the groups are in the run's configuration, and a resumed run has
// them though its call does not say so; layouts and what ranks divide change no bit.
TEST_F(Trainer, ResumesParameterGroupsOnAnotherLayoutToTheBit) {
  const auto grouped = [&](const std::string& name, int64_t ranks, const char* strategy, int64_t steps) {
    RunConfig config = this->config(name);
    config.parallel = {static_cast<int>(ranks), 1, 1, true};
    config.parallel.data_parallel_sharding_strategy = strategy;
    config.train.train_iters = steps;
    set_field(config.fields(), "optimizer_groups",
              R"([{kind = "matrices,experts", shard_by = "matrices", lr_mult = 0.5},
                  {kind = "routers,norms", optimizer = "sgd", lr = 0.02}])",
              "test");
    return config;
  };
  run(grouped("one", 1, "auto", 12));
  run(grouped("moved", 4, "optim_grads_params", 4));
  const auto saved = saved_config(folder_ / "moved");
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->optimizer.groups, grouped("moved", 1, "auto", 1).optimizer.groups);
  EXPECT_EQ(run(grouped("moved", 2, "optim_grads", 8)).resumed_from, 4);
  EXPECT_EQ(run(grouped("moved", 1, "auto", 12)).resumed_from, 8);
  EXPECT_EQ(weights("one", 12), weights("moved", 12));
}

// Of global tensors: shards are cut as the last layout has it.
TEST_F(Trainer, ResumesOnAnotherLayoutToTheBit) {
  const auto layout = [&](const std::string& name, int64_t ranks, int64_t expert, int64_t steps) {
    RunConfig config = this->config(name);
    config.parallel.ranks = ranks;
    config.parallel.expert_model_parallel_size = expert;
    config.parallel.deterministic = true;
    config.train.train_iters = steps;
    testing::drop(config);
    return config;
  };
  run(layout("one", 1, 1, 12));
  run(layout("moved", 4, 2, 4));
  run(layout("moved", 2, 2, 8));
  RunConfig piped = layout("moved", 4, 2, 10);
  piped.parallel.pipeline_model_parallel_size = 2;
  EXPECT_EQ(run(piped).resumed_from, 8);
  EXPECT_EQ(run(layout("moved", 1, 1, 12)).resumed_from, 10);
  EXPECT_EQ(weights("one", 12), weights("moved", 12));
  expect_same_steps("one", "moved");
}

// 289 words, of which ranks hold 144 and 145, or 72 and 73: one model, with rows that pad the table and without.
TEST_F(Trainer, RanksThatDivideWordsUnevenlyResumeOneAnother) {
  for (const int64_t multiple : {1, 16}) {
    const auto layout = [&](const std::string& name, int64_t tensor, int64_t steps) {
      RunConfig config = this->config(cat(name, multiple));
      config.data.bpe.vocab_size = 289;
      config.model.dtype = "float64";
      config.model.make_vocab_size_divisible_by = multiple;
      config.model.init_method = "torch";
      config.model.attention.num_query_groups = 4;
      config.parallel = {tensor, 1, 1};
      config.parallel.tensor_model_parallel_size = tensor;
      config.parallel.sequence_parallel = tensor > 1;
      config.train.train_iters = steps;
      return config;
    };
    run(layout("alone", 1, 12));
    run(layout("moved", 1, 2));
    EXPECT_EQ(run(layout("moved", 2, 5)).resumed_from, 2);
    EXPECT_EQ(run(layout("moved", 4, 8)).resumed_from, 5);
    EXPECT_EQ(run(layout("moved", 1, 12)).resumed_from, 8);
    const auto one = steps(cat("alone", multiple)), moved = steps(cat("moved", multiple));
    ASSERT_EQ(one.size(), 12U);
    ASSERT_EQ(moved.size(), 12U);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(moved[i].loss, one[i].loss, 1e-9 * one[i].loss) << "step " << one[i].step;
      EXPECT_NEAR(moved[i].grad_norm, one[i].grad_norm, 1e-9 * one[i].grad_norm) << "step " << one[i].step;
    }
    EXPECT_LT(one.back().loss, one.front().loss);
  }
  EXPECT_NEAR(steps("alone1").front().loss, steps("alone16").front().loss, 1e-9);
}

TEST_F(Trainer, ResumesToTheBitWithDropoutBiasesAndLearnedPositions) {
  const auto like_gpt = [&](const std::string& name) {
    RunConfig made = config(name);
    RunConfig gpt = testing::gpt_run_config();
    gpt.model.vocab_size = 0;
    gpt.model.make_vocab_size_divisible_by = 128;
    made.model = gpt.model;
    made.parallel = {2, 1, 1};
    made.train.sample_tokens = 100;  // more than there are positions
    return made;
  };
  const RunResult whole = run(like_gpt("whole"));
  EXPECT_FALSE(whole.sample.empty());
  RunConfig first = like_gpt("parts");
  first.train.train_iters = 8;
  run(first);
  EXPECT_EQ(run(like_gpt("parts")).resumed_from, 8);
  // The first of two ranks that hold the same writes it all.
  const auto saved = [&](const std::string& name) {
    return read_file(checkpoint(name, 12) / "shard-00000.safetensors");
  };
  EXPECT_EQ(saved("whole"), saved("parts"));
  expect_same_steps("whole", "parts");
}

// What is lost after the last checkpoint is done again, and comes out the same.
TEST_F(Trainer, GoesOnFromTheLastWholeCheckpoint) {
  run(config("whole"));
  run(config("torn"));
  fs::remove_all(checkpoint("torn", 12));
  std::string shard = read_file(checkpoint("torn", 8) / "shard-00001.safetensors");
  shard[shard.size() / 2] = static_cast<char>(shard[shard.size() / 2] ^ 1);
  std::ofstream(checkpoint("torn", 8) / "shard-00001.safetensors", std::ios::binary) << shard;
  EXPECT_EQ(run(config("torn")).resumed_from, 4);
  EXPECT_EQ(weights("whole", 12), weights("torn", 12));
  expect_same_steps("whole", "torn");
}

TEST_F(Trainer, ASignalSavesAndTheRunGoesOnToTheBit) {
  run(config("whole"));
  RunConfig stopped = config("stopped");
  stopped.train.save_interval = 0;
  int64_t stops = 0;
  for (RunResult result; !result.finished; ++stops) {
    std::atomic<bool> over = false;
    std::thread signaller([&] {
      // The handler is in place once the run has written its first line of metrics after this call began.
      const auto metrics = folder_ / "stopped" / "metrics.jsonl";
      std::error_code none;
      const auto before = fs::file_size(metrics, none);
      while (!over && (fs::file_size(metrics, none) == before || none)) std::this_thread::yield();
      if (!over) std::raise(SIGTERM);
    });
    // Should the signal come when the run is over, it must not end the test.
    const StopSignals catches(StopSignals::Answer::stop);
    result = run(stopped);
    over = true;
    signaller.join();
    EXPECT_TRUE(fs::exists(checkpoint("stopped", result.step)));
  }
  EXPECT_GE(stops, 1);
  EXPECT_EQ(weights("whole", 12), weights("stopped", 12));
  expect_same_steps("whole", "stopped");
}

TEST_F(Trainer, GoesOnUnderAnotherLayout) {
  RunConfig one = config("moved");
  one.model.dtype = "float64";
  RunConfig whole = one;
  whole.train.run = "whole64";
  run(whole);
  one.train.train_iters = 8;
  run(one);
  one.train.train_iters = 12;
  one.parallel = {4, 2, 1};
  run(one);
  const auto a = steps("whole64"), b = steps("moved");
  ASSERT_EQ(b.size(), 12u);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i].loss, b[i].loss, 1e-9 * a[i].loss) << "step " << a[i].step;
}

TEST_F(Trainer, BeginsAgainWhenItNeverSaved) {
  run(config("whole"));
  run(config("early"));
  fs::remove_all(folder_ / "early" / "checkpoints");
  EXPECT_EQ(run(config("early")).resumed_from, 0);
  EXPECT_EQ(weights("whole", 12), weights("early", 12));
  expect_same_steps("whole", "early");
}

TEST_F(Trainer, GoesOnWithTheTokensItBeganWith) {
  run(config("whole"));
  RunConfig first = config("moved-text");
  first.train.train_iters = 8;
  run(first);
  fs::rename(folder_ / "text.jsonl", folder_ / "elsewhere.jsonl");
  EXPECT_EQ(run(config("moved-text")).resumed_from, 8);
  EXPECT_EQ(weights("whole", 12), weights("moved-text", 12));
}

TEST_F(Trainer, OtherTokensAreNoResumption) {
  RunConfig first = config("changed");
  first.train.train_iters = 4;
  run(first);
  std::ofstream(folder_ / "text.jsonl", std::ios::app) << "{\"text\": \"one more row of grain\"}\n";
  run(config("other"));
  for (const char* file : {"tokens.idx", "tokens.bin"})
    fs::copy_file(folder_ / "other" / "data" / file, folder_ / "changed" / "data" / file,
                  fs::copy_options::overwrite_existing);
  const std::string message = message_of<DataError>([&] { run(config("changed")); });
  EXPECT_NE(message.find("the text has changed"), std::string::npos) << message;
}

// A run whose checkpoints are all damaged must not quietly begin again over them.
TEST_F(Trainer, DamagedCheckpointsAloneStopIt) {
  run(config("damaged"));
  for (const int64_t step : {4, 8, 12}) fs::resize_file(checkpoint("damaged", step) / "shard-00001.safetensors", 100);
  const std::string message = message_of<CheckpointError>([&] { run(config("damaged")); });
  EXPECT_NE(message.find("no checkpoint is intact"), std::string::npos) << message;
  EXPECT_NE(message.find("--fresh"), std::string::npos) << message;
  EXPECT_EQ(steps("damaged").size(), 12u) << "the run's figures are still there";
  EXPECT_TRUE(fs::exists(checkpoint("damaged", 12)));
}

TEST_F(Trainer, DamagedMetricsDoNotStopIt) {
  run(config("whole"));
  RunConfig first = config("figures");
  first.train.train_iters = 8;
  run(first);
  std::string text = read_file(folder_ / "figures" / "metrics.jsonl");
  text[1] = '#';
  std::ofstream(folder_ / "figures" / "metrics.jsonl", std::ios::binary) << text;
  EXPECT_EQ(run(config("figures")).resumed_from, 8);
  EXPECT_EQ(weights("whole", 12), weights("figures", 12));
  EXPECT_TRUE(fs::exists(folder_ / "figures" / "metrics.jsonl.damaged"));
  EXPECT_EQ(steps("figures").size(), 4u);
}

TEST_F(Trainer, ALongerRunSaysHowLongItIs) {
  RunConfig first = config("longer");
  first.train.train_iters = 4;
  run(first);
  run(config("longer"));
  EXPECT_EQ(read_metrics(folder_ / "longer" / "metrics.jsonl").run->total_steps, 12);
}

TEST_F(Trainer, GivesUpWhenGradientsStayNonFinite) {
  RunConfig wild = config("wild");
  wild.optimizer.lr = 1e30;
  wild.optimizer.min_lr = 1e30;
  wild.train.train_iters = 40;
  wild.train.most_skipped = 3;
  const std::string message = message_of<DivergedError>([&] { run(wild); });
  EXPECT_NE(message.find("3 steps in a row"), std::string::npos) << message;
  const auto all = steps("wild");
  EXPECT_TRUE(all.back().skipped);
}

TEST_F(Trainer, SkippedStepsAreNoUpdates) {
  RunConfig wild = config("skips");
  wild.optimizer.lr = 1e30;
  wild.optimizer.min_lr = 1e30;
  wild.train.most_skipped = 100;
  wild.train.sample_tokens = 0;
  run(wild);
  const auto all = steps("skips");
  ASSERT_EQ(all.size(), 12u);
  const auto skipped = std::count_if(all.begin(), all.end(), [](const StepEvent& step) { return step.skipped; });
  EXPECT_GT(skipped, 2);
  EXPECT_LT(skipped, 12);
  const TrainState state = TrainState::from_json(open_checkpoint(checkpoint("skips", 12)).scalars);
  EXPECT_EQ(state.updates, 12 - skipped);
  EXPECT_EQ(state.skipped_in_a_row, skipped);
}

TEST_F(Trainer, AStepThatSucceedsEndsARowOfSkippedOnes) {
  RunConfig shaky = config("shaky");
  shaky.train.train_iters = 4;
  shaky.train.most_skipped = 3;
  run(shaky);
  // As if the steps before the checkpoint had been skipped.
  Manifest manifest = open_checkpoint(checkpoint("shaky", 4)).manifest;
  manifest.scalars["skipped_in_a_row"] = 2;
  write_file_atomically(checkpoint("shaky", 4) / kManifestName, manifest_text(manifest));
  shaky.train.train_iters = 8;
  EXPECT_EQ(run(shaky).resumed_from, 4);
  EXPECT_EQ(TrainState::from_json(open_checkpoint(checkpoint("shaky", 8)).scalars).skipped_in_a_row, 0);
}

TEST_F(Trainer, ElapsedTimeGoesOnWhereItStopped) {
  RunConfig timed = config("timed");
  timed.train.train_iters = 4;
  run(timed);
  timed.train.train_iters = 8;
  run(timed);
  double elapsed = 0;
  for (const StepEvent& step : steps("timed")) EXPECT_NEAR(step.elapsed_s, elapsed += step.step_s, 1e-9) << step.step;
}

TEST_F(Trainer, KeepsTheLastCheckpointsAlone) {
  RunConfig few = config("few");
  few.train.keep_last = 2;
  run(few);
  EXPECT_FALSE(fs::exists(checkpoint("few", 4)));
  EXPECT_TRUE(fs::exists(checkpoint("few", 8)));
  EXPECT_TRUE(fs::exists(checkpoint("few", 12)));
}

// A run reserves what the plan says: for its sample too.
TEST_F(Trainer, ALongPromptFitsIntoThePlan) {
  RunConfig wordy = config("wordy");
  wordy.train.train_iters = 1;
  for (int i = 0; i < 1000; ++i) wordy.train.sample_prompt += "q! ";
  EXPECT_TRUE(run(wordy).finished);
}

TEST_F(Trainer, WhatAKilledProcessLeftHalfWrittenGoes) {
  fs::create_directories(folder_ / "left" / "data");
  for (const char* name : {".tmp-config.toml.1.0", "data/.tmp-tokens.bin.1.0", "notes.txt"})
    std::ofstream(folder_ / "left" / name) << "half";
  const RunFolder mine(folder_.path().string(), "left");
  EXPECT_FALSE(fs::exists(folder_ / "left" / ".tmp-config.toml.1.0"));
  EXPECT_FALSE(fs::exists(folder_ / "left" / "data" / ".tmp-tokens.bin.1.0"));
  EXPECT_TRUE(fs::exists(folder_ / "left" / "notes.txt"));
}

TEST_F(Trainer, ARunHasOneProcess) {
  const RunFolder mine(folder_.path().string(), "taken");
  const std::string message = message_of<ConfigError>([&] { RunFolder(folder_.path().string(), "taken"); });
  EXPECT_NE(message.find("another process is training"), std::string::npos) << message;
}

TEST_F(Trainer, ArchivesWithoutOverwriting) {
  fs::create_directory(folder_ / "x");
  std::ofstream(folder_ / "x" / "config.toml") << 0;
  for (const int run : {1, 2}) {
    RunFolder old(folder_.path(), "x");
    EXPECT_FALSE(old.empty());
    RunFolder staged(folder_.path(), "x", RunFolder::Access::stage);
    EXPECT_TRUE(staged.empty());
    std::ofstream(staged.config()) << run;
    const fs::path archived = folder_ / cat("x.", run);
    EXPECT_EQ(staged.replace(old), archived);
    EXPECT_EQ(read_file(archived / "config.toml"), std::to_string(run - 1));
    EXPECT_EQ(read_file(folder_ / "x" / "config.toml"), std::to_string(run));
    EXPECT_EQ(staged.path(), folder_ / "x");
    EXPECT_THROW(RunFolder(folder_.path(), "x"), ConfigError) << "it stays locked";
  }
  { const RunFolder unused(folder_.path(), "x", RunFolder::Access::stage); }
  EXPECT_FALSE(fs::exists(folder_ / ".x.fresh")) << "nothing was written there";
}

TEST_F(Trainer, AFolderThatCannotTakeItsPlaceLeavesTheOldRunThere) {
  RunFolder old(folder_.path(), "x");
  std::ofstream(old.config()) << "old";
  RunFolder staged(folder_.path(), "x", RunFolder::Access::stage);
  fs::remove_all(folder_ / ".x.fresh");
  EXPECT_THROW(staged.replace(old), IoError);
  EXPECT_EQ(old.path(), folder_ / "x");
  EXPECT_EQ(read_file(folder_ / "x" / "config.toml"), "old");
  EXPECT_FALSE(fs::exists(folder_ / "x.1"));
}

TEST_F(Trainer, TextTooShortForASampleIsRefused) {
  std::ofstream(folder_ / "short.txt") << "too short";
  RunConfig tiny = config("tiny");
  tiny.data.data = (folder_ / "short.txt").string();
  EXPECT_THROW(run(tiny), DataError);
  std::ofstream(folder_ / "empty.txt").flush();
  tiny.data.data = (folder_ / "empty.txt").string();
  tiny.train.run = "empty";
  EXPECT_THROW(run(tiny), DataError);
}

TEST(RunConfig, RefusesWhatDoesNotFitTogether) {
  const auto refusal = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config = small_config();
    change(config);
    return message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_NE(refusal([](RunConfig& c) { c.train.global_batch_size = 7; }).find("does not divide"), std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) { c.parallel.ranks = 3; }).find("is not divisible by ranks = 3"),
            std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) {
              c.parallel = {16, 16, 1}, c.train.global_batch_size = 32;
            }).find("expert"),
            std::string::npos);
  EXPECT_EQ(refusal([](RunConfig& c) { c.parallel.ranks = c.parallel.pipeline_model_parallel_size = 4; }),
            "pipeline_model_parallel_size = 4: more pipeline stages than the 2 layers; the nearest that works is 2");
  EXPECT_EQ(refusal([](RunConfig& c) {
              c.parallel.ranks = c.parallel.pipeline_model_parallel_size = 2;
              c.parallel.num_virtual_stages_per_pipeline_rank = 2;
            }),
            "num_virtual_stages_per_pipeline_rank = 2: 2 pipeline stages of 2 virtual stages need 4 layers, and there "
            "are 2; the nearest "
            "that works is 1");
  EXPECT_EQ(
      refusal([](RunConfig& c) { c.model.attention.max_position_embeddings = 11; }),
      "seq_length = 12 is more than max_position_embeddings = 11: raise max_position_embeddings, or lower seq_length");
  EXPECT_NE(refusal([](RunConfig& c) { c.train.run = "../up"; }).find("without slashes"), std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) { c.data.data = "x", c.data.data_path = "y"; }).find("both set"),
            std::string::npos);
}

TEST(TrainState, SurvivesJsonAndNamesWhatIsWrong) {
  const TrainState state{7, 56, 6, 1, 2.5, "tokens"};
  const TrainState copy = TrainState::from_json(state.to_json());
  EXPECT_EQ(copy.step, 7);
  EXPECT_EQ(copy.consumed_samples, 56);
  EXPECT_EQ(copy.updates, 6);
  EXPECT_EQ(copy.skipped_in_a_row, 1);
  EXPECT_EQ(copy.elapsed_s, 2.5);
  EXPECT_EQ(copy.data, "tokens");
  Json broken = state.to_json();
  broken["updates"] = -1;
  EXPECT_NE(message_of<CheckpointError>([&] { TrainState::from_json(broken); }).find("updates"), std::string::npos);
}

}  // namespace
}  // namespace witan
