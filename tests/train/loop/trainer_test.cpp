#include "witan/train/loop/trainer.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/checkpoint/store.h"
#include "witan/train/state/train_state.h"

namespace witan {
namespace {

using test::message_of;
using testing::Trainer;

TEST_F(Trainer, TrainsWithoutEvaluations) {
  RunConfig without = config("a");
  without.train.eval_iters = 0;
  const RunResult result = run(without);
  EXPECT_EQ(result.step, 12);
  EXPECT_FALSE(result.bits_per_byte.has_value());
  const Metrics metrics = read_metrics(folder_ / "a" / "metrics.jsonl");
  EXPECT_EQ(metrics.steps.size(), 12u);
  EXPECT_TRUE(metrics.evals.empty());
  EXPECT_TRUE(metrics.baselines.empty()) << "reported together with an evaluation";
}

TEST_F(Trainer, TrainsEvaluatesSamplesAndSaves) {
  const RunResult result = run(config("a"));
  EXPECT_EQ(result.end, RunEnd::finished);
  EXPECT_EQ(result.step, 12);
  EXPECT_EQ(result.resumed_from, 0);
  EXPECT_FALSE(result.sample.empty());
  const Metrics metrics = read_metrics(folder_ / "a" / "metrics.jsonl");
  ASSERT_EQ(metrics.steps.size(), 12u);
  EXPECT_LT(metrics.steps.back().loss, metrics.steps.front().loss);
  EXPECT_EQ(metrics.evals.size(), 3u);  // steps 5, 10, 12
  EXPECT_EQ(metrics.experts.size(), 12u);
  ASSERT_EQ(metrics.layers.size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    const StepEvent& step = metrics.steps[i];
    EXPECT_GT(step.forward_s.value(), 0);
    EXPECT_GT(step.backward_s.value(), 0);
    EXPECT_LT(*step.forward_s + *step.backward_s + step.optimizer_s.value() + step.data_wait_s, step.step_s);
    const LayersEvent& layers = metrics.layers[i];
    EXPECT_EQ(layers.step, metrics.steps[i].step);
    ASSERT_EQ(layers.grad_norms.size(), static_cast<size_t>(config("a").model.num_layers));
    double squares = std::pow(layers.embedding_grad_norm.value(), 2) + std::pow(layers.head_grad_norm.value(), 2);
    for (const double norm : layers.grad_norms) {
      EXPECT_GT(norm, 0);
      squares += norm * norm;
    }
    EXPECT_NEAR(std::sqrt(squares), metrics.steps[i].grad_norm, 1e-6 * metrics.steps[i].grad_norm);
  }
  ASSERT_EQ(metrics.saves.size(), 3u);  // steps 4, 8, 12
  for (const SaveEvent& save : metrics.saves) EXPECT_LE(0, save.paused_s) << save.step;
  EXPECT_NE(read_file(folder_ / "a" / "train.log").find("checkpoints/step-4 in "), std::string::npos);
  EXPECT_NE(read_file(folder_ / "a" / "train.log").find(" s, training paused "), std::string::npos);
  EXPECT_EQ(metrics.memory.size(), 2u);
  ASSERT_EQ(metrics.baselines.size(), 1u);
  EXPECT_GT(metrics.baselines[0].bits_per_byte, 0);
  EXPECT_TRUE(fs::exists(checkpoint("a", 12) / "manifest.json"));
}

TEST_F(Trainer, GivesUpIfTheLossScaleIsAtItsMinimum) {
  RunConfig config = this->config("nan");
  config.model.dtype = "float16";
  config.optimizer.initial_loss_scale = 0x1p33;
  config.optimizer.min_loss_scale = 0x1p31;
  config.optimizer.hysteresis = 1;
  config.train.most_skipped = 3;
  const std::string said = message_of<DivergedError>([&] { run(config); });
  EXPECT_NE(said.find("step 4: 3 steps in a row had gradients that were not finite"), std::string::npos) << said;
}

TEST_F(Trainer, GivesUpIfGradientsStayNonFinite) {
  RunConfig wild = config("wild");
  wild.optimizer.lr = 1e30;
  wild.optimizer.min_lr = 1e30;
  wild.train.train_iters = 40;
  wild.train.most_skipped = 4;
  const std::string message = message_of<DivergedError>([&] { run(wild); });
  EXPECT_NE(message.find("4 steps in a row"), std::string::npos) << message;
  const fs::path kept = folder_ / "wild" / "anomalies";
  const int64_t first = step_folders(kept).back().first;
  EXPECT_NE(message.find(cat("`witan replay ", (kept / step_folder_name(first)).string(), "`")), std::string::npos)
      << message;
  const std::string log = read_file(folder_ / "wild" / "train.log");
  ASSERT_NE(log.find("keep_anomalies"), std::string::npos) << log;
  EXPECT_EQ(log.find("keep_anomalies"), log.rfind("keep_anomalies")) << "once, for the third and all later steps";
  const auto all = steps("wild");
  EXPECT_TRUE(all.back().skipped);
}

TEST_F(Trainer, SkippedStepsAreNotUpdates) {
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

TEST_F(Trainer, AnUpdateEndsARowOfSkippedSteps) {
  RunConfig shaky = config("shaky");
  shaky.train.train_iters = 4;
  shaky.train.most_skipped = 3;
  run(shaky);
  // Pretends that the steps before the checkpoint were skipped.
  Manifest manifest = open_checkpoint(checkpoint("shaky", 4)).manifest;
  manifest.scalars["skipped_in_a_row"] = 2;
  write_file_atomically(checkpoint("shaky", 4) / kManifestName, manifest_text(manifest));
  shaky.train.train_iters = 8;
  EXPECT_EQ(run(shaky).resumed_from, 4);
  EXPECT_EQ(TrainState::from_json(open_checkpoint(checkpoint("shaky", 8)).scalars).skipped_in_a_row, 0);
}

// The weights may have caused the skipped steps, so a checkpoint among them must not replace an earlier one.
TEST_F(Trainer, SkippedStepsKeepTheCheckpointBeforeThem) {
  RunConfig wild = config("wild");
  wild.train.train_iters = 6;
  wild.train.save_interval = 2;
  wild.train.keep_last = 1;
  run(wild);
  ASSERT_TRUE(fs::exists(checkpoint("wild", 6)));
  wild.optimizer.lr = wild.optimizer.min_lr = 1e30;
  wild.train.train_iters = 40;
  wild.train.most_skipped = 8;
  const std::string message = message_of<DivergedError>([&] { run(wild); });
  const auto all = step_folders(folder_ / "wild" / "checkpoints");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_NE(message.find(cat("step-", all[0].first, ", from before them, is intact; resume from it")),
            std::string::npos)
      << message;
  for (const StepEvent& step : steps("wild")) {
    const bool before = step.step <= all[0].first;
    EXPECT_FALSE(before && step.skipped) << step.step;
  }

  // A requested save, as by a signal, is kept in addition to the earlier one.
  wild.train.exit_interval = all[0].first + 6;
  run(wild);
  EXPECT_TRUE(fs::exists(all[0].second));
  ASSERT_TRUE(fs::exists(checkpoint("wild", wild.train.exit_interval)));
  wild.train.exit_interval = 0;
  const std::string again = message_of<DivergedError>([&] { run(wild); });
  EXPECT_NE(again.find(cat("step-", all[0].first + 6, " was saved among them: remove it from ")), std::string::npos)
      << again;
}

TEST_F(Trainer, ACheckpointDueDuringSkippedStepsIsSavedAfterTheNextUpdate) {
  RunConfig shaky = config("shaky");
  shaky.train.train_iters = 5;
  run(shaky);
  Manifest manifest = open_checkpoint(checkpoint("shaky", 5)).manifest;
  manifest.scalars["skipped_in_a_row"] = 2;  // steps 4 and 5
  write_file_atomically(checkpoint("shaky", 5) / kManifestName, manifest_text(manifest));
  fs::remove_all(checkpoint("shaky", 4));
  shaky.train.train_iters = 9;
  run(shaky);
  for (const int64_t step : {4, 6, 7, 8, 9})
    EXPECT_EQ(fs::exists(checkpoint("shaky", step)), step == 6 || step >= 8) << step;
}

TEST_F(Trainer, KeepsOnlyTheLastCheckpoints) {
  RunConfig few = config("few");
  few.train.keep_last = 2;
  run(few);
  EXPECT_FALSE(fs::exists(checkpoint("few", 4)));
  EXPECT_TRUE(fs::exists(checkpoint("few", 8)));
  EXPECT_TRUE(fs::exists(checkpoint("few", 12)));
}

// A run reserves the planned memory, which includes the sample's.
TEST_F(Trainer, ALongPromptFitsIntoThePlan) {
  RunConfig wordy = config("wordy");
  wordy.train.train_iters = 1;
  for (int i = 0; i < 1000; ++i) wordy.train.sample_prompt += "q! ";
  EXPECT_EQ(run(wordy).end, RunEnd::finished);
}

TEST_F(Trainer, RefusesTextTooShortForASample) {
  std::ofstream(folder_ / "short.txt") << "too short";
  RunConfig tiny = config("tiny");
  tiny.data.data = (folder_ / "short.txt").string();
  EXPECT_THROW(run(tiny), DataError);
  std::ofstream(folder_ / "empty.txt").flush();
  tiny.data.data = (folder_ / "empty.txt").string();
  tiny.train.run = "empty";
  EXPECT_THROW(run(tiny), DataError);
}

}  // namespace
}  // namespace witan
