// In the same layout, a resumed run ends with the same bits as an uninterrupted one.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <regex>
#include <thread>

#include "train/loop/trainer_support.h"
#include "witan/checkpoint/store.h"
#include "witan/optim/lr_schedule.h"
#include "witan/train/loop/trainer.h"
#include "witan/train/signals/signals.h"
#include "witan/train/state/train_state.h"

namespace witan {
namespace {

using testing::Trainer;

TEST_F(Trainer, ResumesBitwise) {
  run(config("whole"));
  RunConfig first = config("parts");
  first.train.train_iters = 8;
  run(first);
  const RunResult second = run(config("parts"));
  EXPECT_EQ(second.resumed_from, 8);
  EXPECT_EQ(weights("whole", 8), weights("parts", 8)) << "one is saved during step 9, one at the end";
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  expect_same_steps("whole", "parts");
  EXPECT_TRUE(read_metrics(folder_ / "whole" / "metrics.jsonl").resumes.empty());
  const auto resumes = read_metrics(folder_ / "parts" / "metrics.jsonl").resumes;
  ASSERT_EQ(resumes.size(), 1u);
  EXPECT_EQ(resumes[0].step, 8);
  EXPECT_TRUE(std::regex_match(resumes[0].time, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"))) << resumes[0].time;
}

// Receive buffers for a balanced load overflow in every step, including those around a save. A run may resume with
// other buffers, or with none.
TEST_F(Trainer, ResumesBitwiseAfterAStepInSeveralPasses) {
  RunConfig whole = config("whole"), first = config("parts");
  whole.parallel.deterministic = first.parallel.deterministic = true;
  RunConfig second = first;
  run(whole);
  first.model.moe.moe_pool_factor = 1;
  first.train.train_iters = 7;
  run(first);
  second.model.moe.moe_pool_factor = 1.01;
  EXPECT_EQ(run(second).resumed_from, 7);
  EXPECT_EQ(weights("whole", 4), weights("parts", 4)) << "saved during a step that ran twice";
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  expect_same_steps("whole", "parts");
  const std::string log = read_file(folder_ / "parts" / "train.log");
  for (const int step : {5, 7, 8, 12})
    EXPECT_NE(log.find(cat("pool overflow: step ", step, " was rerun in ")), std::string::npos) << step;
  EXPECT_EQ(steps("parts")[6].scalars.get(kPoolOverflows), 7) << "every step of the call";
  EXPECT_EQ(steps("parts")[11].scalars.get(kPoolOverflows), 5);
  EXPECT_FALSE(steps("whole")[6].scalars.get(kPoolOverflows));
}

// Send buffers for a balanced load overflow in the first step of each call, after which some steps use exact counts. A
// resumed run starts that over, and no bit depends on it.
TEST_F(Trainer, ResumesBitwiseAfterAStepWithExactCounts) {
  RunConfig whole = config("whole"), first = config("parts");
  whole.parallel.deterministic = first.parallel.deterministic = true;
  RunConfig second = first;
  run(whole);
  first.model.moe.moe_exchange_factor = 1;
  first.train.train_iters = 7;  // the last step overflows
  run(first);
  second.model.moe.moe_exchange_factor = 1.01;
  EXPECT_EQ(run(second).resumed_from, 7);
  EXPECT_EQ(weights("whole", 4), weights("parts", 4));
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  expect_same_steps("whole", "parts");
  const std::string log = read_file(folder_ / "parts" / "train.log");
  for (const int step : {1, 2, 4, 7, 8, 9, 11})
    EXPECT_NE(log.find(cat("exchange overflow: step ", step, " was rerun with exact counts")), std::string::npos)
        << step;
  EXPECT_EQ(steps("parts")[6].scalars.get(kExchangeOverflows), 4) << "steps 1, 2, 4 and 7 of the call";
  EXPECT_EQ(steps("parts")[11].scalars.get(kExchangeOverflows), 3);
  EXPECT_FALSE(steps("whole")[6].scalars.get(kExchangeOverflows));
}

// Replicated experts depend only on each micro-batch, so nothing about them is saved. In deterministic mode a run may
// resume with another number of replicas, or with none.
TEST_F(Trainer, ResumesBitwiseWithReplicatedExperts) {
  for (const bool deterministic : {false, true}) {
    const auto named = [&](const char* name) { return cat(name, deterministic ? "_deterministic" : ""); };
    RunConfig whole = config(named("whole")), first = config(named("parts"));
    whole.parallel.deterministic = first.parallel.deterministic = deterministic;
    whole.model.moe.moe_replicated_experts = first.model.moe.moe_replicated_experts = 2;
    RunConfig second = first;
    first.train.train_iters = 7;
    if (deterministic) second.model.moe.moe_replicated_experts = 0;
    run(whole);
    run(first);
    EXPECT_EQ(run(second).resumed_from, 7);
    EXPECT_EQ(weights(named("whole"), 12), weights(named("parts"), 12));
    expect_same_steps(named("whole"), named("parts"));
  }
}

// The history for spike detection is saved and restored; a skipped step is reported and is not an update.
TEST_F(Trainer, ResumesBitwiseAmongSpikes) {
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
  const std::string log = read_file(folder_ / "whole" / "train.log");
  EXPECT_NE(log.find(": spike: "), std::string::npos) << log;
  EXPECT_NE(log.find("; the step was skipped"), std::string::npos) << log;
}

// A run saved during initial overflows resumes the loss scale, its counters and the masters.
TEST_F(Trainer, ResumesFloat16BitwiseAmongOverflows) {
  const auto narrow = [&](const std::string& name) {
    RunConfig config = this->config(name);
    config.model.dtype = "float16";
    config.optimizer.initial_loss_scale = 0x1p28;
    config.optimizer.loss_scale_window = 2;
    config.optimizer.hysteresis = 1;
    config.train.most_skipped = 2;  // fewer than are skipped in a row while the scale falls
    return config;
  };
  run(narrow("whole"));
  RunConfig first = narrow("parts");
  first.train.train_iters = 4;
  run(first);
  const TrainState saved = TrainState::from_json(open_checkpoint(checkpoint("parts", 4)).scalars);
  EXPECT_GT(saved.loss_scaler.scale, 0);
  EXPECT_EQ(saved.updates, 0) << "during overflows";
  EXPECT_EQ(run(narrow("parts")).resumed_from, 4);
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  const auto all = steps("whole"), again = steps("parts");
  EXPECT_FALSE(all.back().skipped && all[10].skipped) << "the scale has settled";
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].loss, again[i].loss) << i;
    EXPECT_EQ(all[i].skipped, again[i].skipped) << i;
    EXPECT_EQ(all[i].scalars.get(kLossScale), again[i].scalars.get(kLossScale)) << i;
  }
  EXPECT_EQ(all[0].scalars.get(kLossScale), 0x1p27);
}

// As in Megatron-LM, the loss scale is part of the optimizer's state.
TEST_F(Trainer, WithoutOptimizerStateTheLossScaleIsReset) {
  RunConfig narrow = config("narrow");
  narrow.model.dtype = "float16";
  narrow.optimizer.initial_loss_scale = 0x1p28;
  narrow.optimizer.hysteresis = 1;
  narrow.train.train_iters = 4;
  run(narrow);
  narrow.train.train_iters = 6;
  narrow.load.no_load_optim = true;
  EXPECT_EQ(run(narrow).resumed_from, 4);
  const auto all = steps("narrow");
  ASSERT_EQ(all.size(), 6u);
  for (const size_t first : {size_t{0}, size_t{4}}) {
    EXPECT_TRUE(all[first].skipped) << first;
    EXPECT_EQ(all[first].scalars.get(kLossScale), 0x1p27) << first;
  }
  EXPECT_EQ(all[3].scalars.get(kLossScale), 0x1p24) << "different from the scale of a new run";
}

// The schedule does not advance while steps overflow, its first update has a learning rate of 0, and it resumes
// bitwise. A step's line has the learning rate of the next update.
TEST_F(Trainer, AScheduleCountedInUpdatesResumesBitwiseAmongOverflows) {
  const auto scheduled = [&](const std::string& name) {
    RunConfig config = this->config(name);
    config.model.dtype = "float16";
    config.optimizer.initial_loss_scale = 0x1p28;
    config.optimizer.hysteresis = 1;
    config.optimizer.lr_warmup_iters = 4;
    config.optimizer.lr_schedule_counter = "updates";
    config.train.most_skipped = 100;
    config.train.save_interval = 1;
    return config;
  };
  run(scheduled("whole"));
  const auto all = steps("whole");
  int64_t updates = 0;
  for (const StepEvent& step : all) {
    updates += step.skipped ? 0 : 1;
    EXPECT_EQ(step.lr, learning_rate(scheduled("").optimizer, 12, updates)) << step.step;
  }
  const auto first = std::ranges::find(all, false, &StepEvent::skipped);
  ASSERT_TRUE(first != all.begin() && all.end() - first > 3) << "overflows, then updates";
  RunConfig parts = scheduled("parts");
  parts.train.train_iters = first->step + 1;
  run(parts);
  EXPECT_EQ(run(scheduled("parts")).resumed_from, first->step + 1);
  EXPECT_EQ(weights("whole", 12), weights("parts", 12));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].lr, steps("parts")[i].lr) << i;
}

TEST_F(Trainer, TheFirstUpdateOfAScheduleUsesWarmupInit) {
  for (const auto& [name, warmup, init, moves] :
       {std::tuple{"still", 4, 0.0, false}, {"risen", 4, 1e-4, true}, {"unwarmed", 0, 0.0, true}}) {
    RunConfig one = config(name);
    one.optimizer.lr_schedule_counter = "updates";
    one.optimizer.lr_decay_style = "linear";
    one.optimizer.lr_warmup_iters = warmup;
    one.optimizer.lr_warmup_init = init;
    one.optimizer.lr_decay_iters = warmup > 0 ? 12 : 1;
    one.train.train_iters = 1;
    RunConfig none = one;
    none.train.run = cat(name, "-by-nothing");
    none.optimizer.lr = none.optimizer.min_lr = none.optimizer.lr_warmup_init = 0;
    run(one);
    run(none);
    EXPECT_EQ(weights(name, 1) != weights(none.train.run, 1), moves) << name;
  }
}

// Moments are resumed in another dtype than the saved one.
TEST_F(Trainer, ResumesWithMomentsInBfloat16) {
  RunConfig first = config("moments");
  first.train.train_iters = 8;
  run(first);
  RunConfig second = config("moments");
  second.optimizer.exp_avg_dtype = second.optimizer.exp_avg_sq_dtype = "bfloat16";
  EXPECT_EQ(run(second).resumed_from, 8);
  EXPECT_LT(steps("moments").back().loss, steps("moments").front().loss);
}

TEST_F(Trainer, ResumesBitwiseWithDropoutBiasesAndLearnedPositions) {
  const auto like_gpt = [&](const std::string& name) {
    RunConfig made = config(name);
    RunConfig gpt = testing::gpt_run_config();
    gpt.model.vocab_size = 0;
    gpt.model.make_vocab_size_divisible_by = 128;
    made.model = gpt.model;
    made.parallel = {2, 1, 1};
    made.train.sample_tokens = 100;  // more than the model's positions
    return made;
  };
  const RunResult whole = run(like_gpt("whole"));
  EXPECT_FALSE(whole.sample.empty());
  RunConfig first = like_gpt("parts");
  first.train.train_iters = 8;
  run(first);
  EXPECT_EQ(run(like_gpt("parts")).resumed_from, 8);
  // The first of two replicas writes everything.
  const auto saved = [&](const std::string& name) {
    return read_file(checkpoint(name, 12) / "shard-00000.safetensors");
  };
  EXPECT_EQ(saved("whole"), saved("parts"));
  expect_same_steps("whole", "parts");
}

TEST_F(Trainer, ASignalSavesAndTheRunContinuesBitwise) {
  run(config("whole"));
  RunConfig stopped = config("stopped");
  stopped.train.save_interval = 0;
  int64_t stops = 0;
  for (RunResult result; !is_finished(result.end); ++stops) {
    std::atomic<bool> over = false;
    std::thread signaller([&] {
      // The handler is installed before the run writes its first line of metrics.
      const auto metrics = folder_ / "stopped" / "metrics.jsonl";
      std::error_code none;
      const auto before = fs::file_size(metrics, none);
      while (!over && (fs::file_size(metrics, none) == before || none)) std::this_thread::yield();
      if (!over) std::raise(SIGTERM);
    });
    // A signal that arrives after the run must not end the test.
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

TEST_F(Trainer, EndsAtAStepOrTimeAndContinuesBitwise) {
  run(config("whole"));
  RunConfig steps = config("steps"), time = config("time");
  steps.train.save_interval = time.train.save_interval = 0;
  steps.train.exit_interval = 5;
  for (const int64_t last : {5, 10, 12}) {
    const RunResult result = run(steps);
    EXPECT_EQ(result.step, last);
    EXPECT_EQ(result.end, last == 12 ? RunEnd::finished : RunEnd::exit_interval);
    EXPECT_TRUE(fs::exists(checkpoint("steps", last)));
    ASSERT_TRUE(read_metrics(folder_ / "steps" / "metrics.jsonl").end);
    EXPECT_EQ(read_metrics(folder_ / "steps" / "metrics.jsonl").end->reason,
              last == 12 ? "finished" : "stopped by exit_interval");
  }
  EXPECT_NE(read_file(folder_ / "steps" / "train.log").find("exit_interval: saving"), std::string::npos);
  time.train.exit_duration_in_mins = 1e-9;  // exceeded after any step
  for (int64_t last = 1; last <= 3; ++last) EXPECT_EQ(run(time).step, last);
  EXPECT_NE(read_file(folder_ / "time" / "train.log").find("exit_duration_in_mins: saving"), std::string::npos);
  time.train.exit_duration_in_mins = 1e9;
  EXPECT_EQ(run(time).end, RunEnd::finished);
  for (const char* name : {"steps", "time"}) {
    EXPECT_EQ(weights("whole", 12), weights(name, 12)) << name;
    expect_same_steps("whole", name);
  }
}

TEST_F(Trainer, KeepsItsInitialTokens) {
  run(config("whole"));
  RunConfig first = config("moved-text");
  first.train.train_iters = 8;
  run(first);
  fs::rename(folder_ / "text.jsonl", folder_ / "elsewhere.jsonl");
  EXPECT_EQ(run(config("moved-text")).resumed_from, 8);
  EXPECT_EQ(weights("whole", 12), weights("moved-text", 12));
}

TEST_F(Trainer, ElapsedTimeContinues) {
  RunConfig timed = config("timed");
  timed.train.train_iters = 4;
  run(timed);
  timed.train.train_iters = 8;
  run(timed);
  double elapsed = 0;
  for (const StepEvent& step : steps("timed")) EXPECT_NEAR(step.elapsed_s, elapsed += step.step_s, 1e-9) << step.step;
}

TEST_F(Trainer, ALongerRunReportsItsLength) {
  RunConfig first = config("longer");
  first.train.train_iters = 4;
  run(first);
  run(config("longer"));
  EXPECT_EQ(read_metrics(folder_ / "longer" / "metrics.jsonl").run->total_steps, 12);
}

// Saves within the ramp, at a change of the size, and after it.
TEST_F(Trainer, ResumesBitwiseAnywhereInABatchRamp) {
  const auto ramped = [&](const std::string& name, int64_t steps) {
    RunConfig config = this->config(name);
    config.train.global_batch_size = 12;
    config.train.rampup_batch_size = "4,4,24";  // steps of 4, 4, 4, 8, 8, and 12 from the sixth on
    config.train.train_iters = steps;
    config.train.eval_interval = 4;
    return config;
  };
  run(ramped("whole", 8));
  for (const int64_t stop : {1, 3, 5, 7}) run(ramped("parts", stop));
  const RunResult last = run(ramped("parts", 8));
  EXPECT_EQ(last.resumed_from, 7);
  EXPECT_EQ(weights("whole", 4), weights("parts", 4));
  EXPECT_EQ(weights("whole", 8), weights("parts", 8));
  expect_same_steps("whole", "parts");
  const auto all = steps("parts");
  const std::vector<int64_t> consumed = {4, 8, 12, 20, 28, 40, 52, 64};
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].tokens, consumed[i] * 12) << "of a sequence length of 12, step " << i + 1;
    const int64_t samples = consumed[i] - (i > 0 ? consumed[i - 1] : 0);
    EXPECT_NEAR(all[i].tokens_per_s * all[i].step_s, static_cast<double>(samples * 12), 1e-6) << "step " << i + 1;
  }
  const TrainState state = TrainState::from_json(open_checkpoint(checkpoint("parts", 8)).scalars);
  EXPECT_EQ(state.consumed_samples, 64);
  EXPECT_EQ(state.updated_samples, 64);
  const std::string log = read_file(folder_ / "whole" / "train.log");
  for (const char* line :
       {"step 1: global batch size 4", "step 4: global batch size 8", "step 6: global batch size 12"})
    EXPECT_NE(log.find(line), std::string::npos) << line;
  EXPECT_EQ(log.find("step 5: global batch size"), std::string::npos) << "only when it changes";
}

// Megatron-LM prints the learning rate of the next update, according to the samples of past updates.
TEST_F(Trainer, SchedulesInSamplesCountTheRamp) {
  RunConfig config = this->config("samples");
  config.train.global_batch_size = 12;
  config.train.rampup_batch_size = "4,4,24";
  config.train.train_samples = 64;
  config.optimizer.lr_decay_style = "linear";
  config.optimizer.lr_warmup_samples = 8;
  run(config);
  const auto all = steps("samples");
  ASSERT_EQ(all.size(), 8u);
  const double lr = config.optimizer.lr, least = config.optimizer.min_lr;
  const std::vector<double> consumed = {4, 8, 12, 20, 28, 40, 52, 64};
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_NEAR(all[i].lr, consumed[i] <= 8 ? lr * consumed[i] / 8 : least + (lr - least) * (64 - consumed[i]) / 56,
                1e-12)
        << "step " << i + 1;
}

}  // namespace
}  // namespace witan
