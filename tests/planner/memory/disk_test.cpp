#include "witan/planner/memory/disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/checkpoint/store.h"
#include "witan/planner/memory/meta_rank.h"
#include "witan/train/loop/anomaly.h"
#include "witan/train/rollouts/rollout_files.h"

namespace witan {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The bytes of the tensors in a checkpoint of the run, and of all its files in whole blocks.
struct Saved {
  int64_t tensors = 0, files = 0;
};

Saved saved_in(const fs::path& folder) {
  Saved saved;
  for (const auto& [name, entry] : open_checkpoint(folder).manifest.tensors)
    saved.tensors += entry.shape.elements() * size_of(entry.dtype);
  for (const auto& file : fs::directory_iterator(folder))
    saved.files += (static_cast<int64_t>(file.file_size()) + 4095) / 4096 * 4096;
  return saved;
}

std::pair<Saved, Saved> save(const RunConfig& config) {
  const test::TempFolder folder;
  const int ranks = static_cast<int>(config.parallel.ranks);
  const Layout layout = layout_of(config);
  const int64_t arena = make_plan(resolve(config, {})).arena_bytes();
  ThreadWorld world(ranks);
  world.run([&](int rank) {
    ThreadPool pool(1);
    Stream stream(device_of(config, rank), Arena::reserve(arena), pool);
    const Groups groups = make_groups(world, layout, rank, stream, sums_of(config));
    Engine engine(stream, groups, resolve(config, {}));
    RunConfig copy = config;
    CheckpointContent content{1, engine.state(), Json::object(), {{"config.toml", write_toml(copy.fields())}}};
    save_checkpoint(groups.world(), stream, folder.path(), content);
    Batch batch;
    batch.sequences = config.train.micro_batch_size;
    batch.sequence_length = config.data.seq_length;
    const auto tokens = static_cast<size_t>(batch.sequences * batch.sequence_length);
    batch.tokens = batch.targets = batch.positions = batch.sequence_ids = std::vector<int32_t>(tokens);
    batch.loss_mask = std::vector<float>(tokens);
    const std::vector<Batch> batches(static_cast<size_t>(config.micro_batches() / layout.data_ranks()), batch);
    const StepResult result;
    write_anomaly(groups.world(), stream, folder / "anomalies", {engine, layout, batches, 1, 0, result}, Json::object(),
                  content.files);
  });
  return {saved_in(folder / "step-1"), saved_in(folder / "anomalies" / "step-1")};
}

TEST(Disk, CheckpointsAndAnomaliesAreAsLargeAsPlanned) {
  std::vector<RunConfig> configs;
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    RunConfig config = testing::small_config();
    config.model.dtype = dtype;
    configs.push_back(config);
    config.parallel = {2, 2, 1};
    configs.push_back(config);
    config.parallel = {4, 2, 1};
    config.parallel.use_distributed_optimizer = true;
    configs.push_back(config);
  }
  RunConfig plain = testing::gpt_run_config();
  plain.optimizer.optimizer = "sgd";
  configs.push_back(plain);
  for (const RunConfig& config : configs) {
    SCOPED_TRACE(config.model.dtype + ", " + std::to_string(config.parallel.ranks) + " ranks");
    const auto [checkpoint, anomaly] = save(config);
    const FolderBytes planned = folder_bytes(resolve(config, {}));
    EXPECT_GE(planned.checkpoint, checkpoint.files);
    EXPECT_LE(planned.checkpoint, checkpoint.tensors + (int64_t{400} << 10)) << "little more than the tensors";
    EXPECT_GE(planned.anomaly, anomaly.files);
    EXPECT_LE(planned.anomaly, anomaly.tensors + (int64_t{400} << 10));
    EXPECT_LT(planned.anomaly, planned.checkpoint);
    const Plan plan = make_plan(resolve(config, {}));
    EXPECT_EQ(plan.checkpoint_bytes, planned.checkpoint);
    EXPECT_EQ(plan.anomaly_bytes, planned.anomaly);
    EXPECT_EQ(plan.anomalies, 2);
    EXPECT_EQ(plan.disk_bytes,
              static_cast<double>(more_checkpoints(config.train) * planned.checkpoint + 2 * planned.anomaly));
  }
}

TEST(Disk, CountsCheckpointsKeptAtOnce) {
  TrainConfig config;  // 1000 steps, saved every 200, two kept
  EXPECT_EQ(more_checkpoints(config), 3);
  EXPECT_EQ(more_checkpoints(config, {200, 1}), 2);
  EXPECT_EQ(more_checkpoints(config, {400, 2}), 1);
  EXPECT_EQ(more_checkpoints(config, {800, 5}), 1) << "existing checkpoints need no more space";
  config.keep_last = 100;
  EXPECT_EQ(more_checkpoints(config), 5) << "not more than the run saves";
  EXPECT_EQ(more_checkpoints(config, {600, 3}), 2);
  config.train_iters = 1001;
  EXPECT_EQ(more_checkpoints(config), 6);
  config.save_interval = 0;
  EXPECT_EQ(more_checkpoints(config), 1);
}

TEST(Disk, CountsPossibleAnomalies) {
  TrainConfig config;
  EXPECT_EQ(more_anomalies(config), 2);
  EXPECT_EQ(more_anomalies(config, {400, 2, 1}), 1);
  EXPECT_EQ(more_anomalies(config, {400, 2, 3}), 0);
  EXPECT_EQ(more_anomalies(config, {999, 2, 0}), 1) << "only one step can still diverge";
  config.keep_anomalies = 0;
  EXPECT_EQ(more_anomalies(config), 0);
}

TEST(Disk, AnomaliesNeedSpaceToo) {
  constexpr int64_t kMiB = 1 << 20;
  TrainConfig config;
  const auto refusal = [&](int64_t free, const DiskState& state = {}) {
    return message_of<DiskFullError>([&] {
      require_disk(config, {100 * kMiB, 30 * kMiB}, state, "runs/mine", static_cast<uint64_t>(free * kMiB));
    });
  };
  EXPECT_NO_THROW(require_disk(config, {100 * kMiB, 30 * kMiB}, {}, "runs/mine", 360 * kMiB));
  EXPECT_THAT(refusal(359), AllOf(HasSubstr("and keeps 2 of the steps that go wrong, 30.0 MiB each: it needs 360 MiB"),
                                  HasSubstr("Free 1.00 MiB, do not keep those steps (--keep-anomalies 0), or")));
  EXPECT_THAT(refusal(270), HasSubstr("keep fewer (--keep-last 1),"));
  EXPECT_THAT(refusal(250), HasSubstr("keep fewer (--keep-last 1 --keep-anomalies 0),"));
  EXPECT_THAT(refusal(129, {400, 2, 1}), HasSubstr("and keeps 1 more of the steps that go wrong"));
  EXPECT_NO_THROW(require_disk(config, {100 * kMiB, 30 * kMiB}, {400, 2, 2}, "runs/mine", 100 * kMiB));
}

TEST(Disk, RefusesRunsWhoseCheckpointsDoNotFit) {
  constexpr int64_t kMiB = 1 << 20;
  TrainConfig config;
  config.keep_anomalies = 0;
  const auto refusal = [&](int64_t free, const DiskState& state = {}) {
    return message_of<DiskFullError>([&] {
      require_disk(config, {100 * kMiB, 30 * kMiB}, state, "runs/mine", static_cast<uint64_t>(free * kMiB));
    });
  };
  EXPECT_NO_THROW(require_disk(config, {100 * kMiB, 30 * kMiB}, {}, "runs/mine", 300 * kMiB));
  EXPECT_THAT(refusal(299), AllOf(HasSubstr("runs/mine: the run keeps 2 checkpoints of 100 MiB"), HasSubstr("300 MiB"),
                                  HasSubstr("299 MiB are free"), HasSubstr("Free 1.00 MiB"), HasSubstr("--keep-last 1"),
                                  HasSubstr("--runs-folder")));
  EXPECT_THAT(refusal(150), AllOf(HasSubstr("Free 150 MiB"), Not(HasSubstr("--keep-last")))) << "at least two";
  EXPECT_THAT(refusal(99), AllOf(HasSubstr("so that none could be saved"), HasSubstr("Free 1.00 MiB")));
  EXPECT_THAT(refusal(99, {400, 2}), HasSubstr("so that none could be saved"));
  EXPECT_NO_THROW(require_disk(config, {100 * kMiB, 30 * kMiB}, {400, 2}, "runs/mine", 100 * kMiB));
  config.keep_last = 5;
  EXPECT_THAT(refusal(250, {400, 2}), AllOf(HasSubstr("300 MiB more"), HasSubstr("--keep-last 3)")))
      << "the two existing ones and one of the two that still fit";
  config.keep_last = 1000;
  config.train_iters = 200'000;
  EXPECT_THAT(refusal(1050), AllOf(HasSubstr("97.7 GiB"), HasSubstr("--keep-last 9)")));
}

// The required space that the message states: numbers of checkpoints and anomalies times their sizes.
TEST(Disk, CountsOnlyCheckpointsThatAShortRunSaves) {
  constexpr int64_t kMiB = 1 << 20;
  TrainConfig config;  // saved every 200 steps, two kept
  const auto refusal = [&](int64_t free, const DiskState& state = {}) {
    return message_of<DiskFullError>([&] {
      require_disk(config, {100 * kMiB, 30 * kMiB}, state, "runs/mine", static_cast<uint64_t>(free * kMiB));
    });
  };
  config.train_iters = 10;
  EXPECT_THAT(refusal(159),
              HasSubstr("runs/mine: the run keeps 1 checkpoint of 100 MiB, all that it saves, and keeps 2 "
                        "of the steps that go wrong, 30.0 MiB each: it needs 160 MiB, and 159 MiB are"));
  config.keep_anomalies = 0;
  config.train_iters = 400;
  EXPECT_THAT(refusal(199), HasSubstr("the run keeps 2 checkpoints of 100 MiB, all that it saves: it needs 200 MiB,"));
  config.train_iters = 401;
  EXPECT_THAT(refusal(299), HasSubstr("the run keeps 2 checkpoints of 100 MiB and writes the next one before it "
                                      "deletes the oldest: it needs 300 MiB,"));
  config.keep_last = 5;
  config.train_iters = 800;
  EXPECT_THAT(refusal(199, {400, 2}), HasSubstr("the run keeps 2 more checkpoints of 100 MiB: it needs 200 MiB more,"));
}

TEST(Disk, WarnsOfAnswersThatMayNotFit) {
  constexpr int64_t kMiB = 1 << 20;
  RunConfig config;
  config.train.train_iters = 100;
  const FolderBytes bytes{100 * kMiB, 30 * kMiB};
  const auto warning = [&](double free, const DiskState& state = {}) {
    return warn_of_rollouts(config, bytes, state, "runs/mine", static_cast<uint64_t>(free));
  };
  EXPECT_EQ(warning(0), "") << "a run without them";
  config.rollout.rollouts = true;
  const auto of_step = static_cast<double>(rollout_file_bytes(config)), others = 160.0 * kMiB;
  EXPECT_EQ(warning(others + 100 * of_step), "");
  EXPECT_THAT(warning(others + 50.5 * of_step),
              AllOf(HasSubstr("runs/mine: if all answers are long, those of 100 steps take"),
                    HasSubstr("keep fewer (--keep-rollouts 50)")));
  EXPECT_EQ(warning(others + 50.5 * of_step, {.step = 50, .checkpoints = 0}), "");
  config.rollout.keep_rollouts = 50;
  EXPECT_EQ(warning(others + 50.5 * of_step), "");
}

TEST(Disk, MeasuresTheDiskOfAFolderNotYetCreated) {
  const test::TempFolder folder;
  EXPECT_NEAR(static_cast<double>(free_bytes_for(folder / "runs/not/yet")),
              static_cast<double>(free_disk_bytes(folder.path())), 1e9);
  EXPECT_GT(free_bytes_for("runs-that-are-not/there"), 0u);
}

}  // namespace
}  // namespace witan
