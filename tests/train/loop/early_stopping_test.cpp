#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"
#include "witan/train/state/train_state.h"
#include "witan/train/weights/load_run.h"

namespace witan {
namespace {

using test::message_of;
using testing::Trainer;

// With a learning rate of 0 no evaluation is better than the first one, at step 2.
class EarlyStopping : public Trainer {
 protected:
  RunConfig still(const std::string& run) {
    RunConfig config = this->config(run);
    config.optimizer.lr = config.optimizer.min_lr = 0;
    config.train.eval_interval = 2;
    config.train.early_stopping_patience = 2;
    return config;
  }
  Metrics metrics(const std::string& run) { return read_metrics(folder_ / run / "metrics.jsonl"); }
};

TEST_F(EarlyStopping, EndsTheRunAndSavesIt) {
  const RunResult result = run(still("a"));
  EXPECT_EQ(result.end, RunEnd::stopped_early);
  EXPECT_EQ(result.step, 6);
  EXPECT_EQ(result.validation, (ValidationRecord{metrics("a").evals.front().loss, 2, 2}));
  EXPECT_EQ(metrics("a").end->reason, "stopped early");
  EXPECT_TRUE(fs::exists(checkpoint("a", 6)));
}

TEST_F(EarlyStopping, IsIndependentOfWhereTheRunIsResumed) {
  run(still("whole"));
  for (const int64_t stop : {1, 3, 4, 5}) {
    RunConfig first = still("parts");
    first.train.train_iters = stop;
    fs::remove_all(folder_ / "parts");
    run(first);
    const RunResult second = run(still("parts"));
    EXPECT_EQ(second.resumed_from, stop);
    EXPECT_EQ(second.step, 6) << stop;
    EXPECT_EQ(weights("whole", 6), weights("parts", 6)) << stop;
  }
}

// The last line of metrics belongs to the last step, although no log interval ends there.
TEST_F(EarlyStopping, EveryStepIsRecorded) {
  RunConfig config = still("a");
  config.train.log_interval = 100;
  config.train.save_interval = 0;
  run(config);
  EXPECT_EQ(metrics("a").steps.back().step, 6);
}

TEST_F(EarlyStopping, IsOffByDefault) {
  RunConfig config = still("a");
  config.train.early_stopping_patience = 0;
  EXPECT_EQ(run(config).step, 12);
  EXPECT_EQ(run(config).end, RunEnd::finished);
}

TEST_F(EarlyStopping, NeedsEvaluations) {
  RunConfig config = still("a");
  config.train.eval_interval = 0;
  EXPECT_NE(message_of<ConfigError>([&] { run(config); }).find("early_stopping_patience = 2 counts evaluations"),
            std::string::npos);
}

// The second call has a learning rate that destroys the model.
TEST_F(EarlyStopping, KeepsTheBestCheckpoint) {
  RunConfig config = this->config("a");
  config.optimizer.lr = config.optimizer.min_lr = 0.01;
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_style = "constant";
  config.train.eval_interval = 0;
  config.train.save_interval = 3;
  config.train.keep_last = config.train.keep_best = 1;
  config.train.train_iters = 6;
  run(config);
  config.train.train_iters = 12;  // checkpoints contain their losses
  config.optimizer.lr = config.optimizer.min_lr = 3;
  run(config);
  const std::vector<EvalEvent> evals = metrics("a").evals;
  ASSERT_EQ(evals.size(), 4u) << "before each checkpoint";
  const auto best = std::ranges::min_element(evals, {}, &EvalEvent::loss);
  ASSERT_NE(best->step, 12);
  for (const int64_t step : {3, 6, 9, 12})
    EXPECT_EQ(fs::exists(checkpoint("a", step)), step == best->step || step == 12) << step;
  EXPECT_EQ(open_checkpoint(checkpoint("a", best->step)).scalars[kValidationLoss], best->loss);
  EXPECT_EQ(open_run(folder_.path(), "a@best").checkpoint.step, best->step);
  EXPECT_THAT(open_run(folder_.path(), "a@best").warnings, ::testing::IsEmpty());
  EXPECT_EQ(open_run(folder_.path(), "a@12").checkpoint.step, 12);
  EXPECT_EQ(open_run(folder_.path(), "a").checkpoint.step, 12);
  EXPECT_NE(message_of<CheckpointError>([&] { open_run(folder_.path(), "a@7"); }).find("has no checkpoint 7"),
            std::string::npos);
  // A run from before such names were refused.
  fs::copy(folder_ / "a", folder_ / "a@best", fs::copy_options::recursive);
  EXPECT_THAT(message_of<UsageError>([&] { open_run(folder_.path(), "a@best"); }),
              ::testing::AllOf(::testing::HasSubstr("a@best is a run in "),
                               ::testing::HasSubstr("and a checkpoint of the run a: give one of the first as "
                                                    "a@best@best or a@best@STEP, or rename its folder")));
  EXPECT_EQ(open_run(folder_.path(), "a@best@best").checkpoint.step, best->step);
  EXPECT_EQ(open_run(folder_.path(), "a@best@best").folder, folder_ / "a@best");
  EXPECT_EQ(open_run(folder_.path(), "a@12").folder, folder_ / "a");
  fs::remove_all(folder_ / "a");
  EXPECT_EQ(open_run(folder_.path(), "a@best").checkpoint.step, 12) << "the only run that matches";
}

TEST_F(EarlyStopping, ReportsWhereTheBestWeightsAreLost) {
  RunConfig config = this->config("a");
  config.optimizer.lr = config.optimizer.min_lr = 0.01;
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_style = "constant";
  config.train.eval_interval = config.train.save_interval = 1;
  config.train.train_iters = 2;
  run(config);
  config.train.train_iters = 3;
  config.optimizer.lr = config.optimizer.min_lr = 3;  // destroys the model, so that one of the first two steps is best
  run(config);
  const std::vector<EvalEvent> evals = metrics("a").evals;
  const auto best = std::ranges::min_element(evals, {}, &EvalEvent::loss);
  ASSERT_NE(best->step, 3);
  fs::remove_all(checkpoint("a", best->step));
  const TrainedRun opened = open_run(folder_.path(), "a@best");
  const double taken = opened.checkpoint.scalars[kValidationLoss];
  const std::string lost = fmt::format(
      "the best validation loss was {:.4f} at step {}, whose weights were not kept; those of step {} are taken, with "
      "{:.4f}",
      best->loss, best->step, opened.checkpoint.step, taken);
  EXPECT_THAT(opened.warnings, ::testing::ElementsAre(::testing::StartsWith(lost)));
  EXPECT_THAT(open_run(folder_.path(), "a").warnings, ::testing::IsEmpty()) << "the best was not requested";

  RunConfig next = this->config("b");
  next.train.init_from = "a@best";
  next.train.train_iters = 1;
  next.data.tokenizer = (folder_ / "a/tokenizer.json").string();
  run(next);
  EXPECT_THAT(read_file(folder_ / "b/train.log"), ::testing::HasSubstr("a@best: " + lost));
}

}  // namespace
}  // namespace witan
