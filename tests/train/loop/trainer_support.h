// Short runs of the trainer on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/report/events/metrics.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/loop/trainer.h"

namespace witan::testing {

// Runs of a small model on generated text, each in its own folder below a temporary one.
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
    config.optimizer.lr_decay_iters = 12;  // the same schedule for every length of the call
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
      RunStart start = find_start(folder, config.train);
      start.aids = aids_;
      result = train(resolved, run_plan(plan), data, start,
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
  // Everything in a checkpoint except the elapsed time.
  std::string weights(const std::string& run, int64_t step) {
    const fs::path second = checkpoint(run, step) / "shard-00001.safetensors";  // absent in runs of one rank
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

  test::TempFolder folder_;
  RunAids aids_;  // for the following runs
};

}  // namespace witan::testing
