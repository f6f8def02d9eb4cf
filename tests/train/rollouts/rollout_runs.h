// Small runs that are fine-tuned on conversations, sample their batches from them, or prefer answers to others.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/report/events/metrics.h"
#include "witan/tokenizer/training/bpe_trainer.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/loop/trainer.h"
#include "witan/train/rollouts/rollouts.h"

namespace witan::testing {

inline constexpr const char* kRolloutTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

class RolloutRuns : public ::testing::Test {
 protected:
  RolloutRuns() {
    fs::create_directories(folder_ / "hf");
    BpeTrainerConfig bytes;
    bytes.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    bytes.vocab_size = 256 + 3;
    BpeTrainer(bytes).train().save(folder_ / "hf/tokenizer.json");
    write_file_atomically(folder_ / "hf/chat_template.jinja", kRolloutTemplate);
    std::ofstream rows(folder_ / "chat.jsonl");
    for (int i = 0; i < 60; ++i) rows << conversation(std::to_string(i % 10), i % 2 ? "odd" : "even");
  }

  static std::string conversation(const std::string& question, const std::string& answer) {
    return R"({"messages": [{"role": "user", "content": ")" + question + R"("}, {"role": "assistant", "content": ")" +
           answer + "\"}]}\n";
  }

  // Supervised fine-tuning with the sizes of the runs that sample.
  RunConfig supervised(const std::string& run) const {
    RunConfig config = small_config();
    config.model.vocab_size = 0;
    config.data.sft = true;
    config.data.packing = "none";
    config.data.data = (folder_ / "chat.jsonl").string();
    config.data.tokenizer = (folder_ / "hf/tokenizer.json").string();
    config.data.seq_length = 48;
    config.data.held_out_fraction = 0.1;
    config.train.run = run;
    config.train.runs_folder = folder_.path().string();
    config.train.micro_batch_size = 4;
    config.train.global_batch_size = 16;
    config.train.eval_iters = 0;
    config.train.save_interval = 0;
    config.train.sample_tokens = 0;
    config.optimizer.lr_decay_iters = 200;
    config.optimizer.lr_warmup_iters = 0;
    config.optimizer.lr = 5e-3;
    config.parallel = {1, 1, 1};
    return config;
  }
  RunConfig sampled(const std::string& run) const {
    RunConfig config = supervised(run);
    config.objective.objective = "policy";
    config.rollout.rollouts = true;
    config.rollout.num_generations = 4;
    config.rollout.max_completion_length = 6;
    return config;
  }

  RunResult run(const RunConfig& config) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> quiet(std::fopen("/dev/null", "w"), std::fclose);
    Progress progress(quiet.get(), progress_options(quiet.get()));
    const RunFolder folder(config.train.runs_folder, config.train.run);
    const RunData data = prepare_run_data(config, folder, progress);
    warnings_ = data.warnings;
    const ResolvedConfig resolved = resolve(config, {.cores = 2, .vocabulary = data.tokenizer->vocab_size()});
    write_file_atomically(folder.config(), config_to_save(resolved));
    const Plan plan = make_plan(resolved);
    const RunResult result = train(resolved, run_plan(plan), data, find_start(folder, config.train),
                                   RunEvent{.name = config.train.run,
                                            .started = "2026-01-01T00:00:00Z",
                                            .config_hash = "h",
                                            .total_steps = config.train.train_iters},
                                   progress);
    for (size_t rank = 0; rank < result.memory.size(); ++rank) {
      EXPECT_GT(result.memory[rank].peak, 0);
      EXPECT_LE(result.memory[rank].peak, plan.ranks[rank].arena_bytes);
    }
    return result;
  }
  std::vector<double> figures(const std::string& run, const std::string& key) const {
    std::vector<double> values;
    for (const StepEvent& step : read_metrics(folder_ / run / "metrics.jsonl").steps)
      if (const auto value = step.scalars.get(key)) values.push_back(*value);
    return values;
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> values;
    for (const StepEvent& step : read_metrics(folder_ / run / "metrics.jsonl").steps) values.push_back(step.loss);
    return values;
  }
  std::string rollouts(const std::string& run, int64_t step) const {
    return read_file(folder_ / run / "rollouts" / fmt::format("step-{:08}.jsonl", step));
  }

  test::TempFolder folder_;
  std::vector<std::string> warnings_;  // about the data of the last run
};

}  // namespace witan::testing
