#include "witan/cli/train/train_page.h"

#include "cli/cli_support.h"
#include "train/step/run_support.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/threads/threads.h"
#include "witan/train/state/train_state.h"
#include "witan/train/step/device.h"

namespace witan::test {
namespace {

// Returns the text that `say` writes to a log.
std::string said(const std::function<void(Progress&)>& say) {
  Capture err;
  {
    Progress progress(err.file(), {.now = [] { return 0.0; }});
    say(progress);
  }
  return err.text();
}

// Ceilings measured while the machine was busy are too low: a step cannot exceed the machine's speed.
TEST(TrainPage, PredictionsNeverExceedTheCeiling) {
  RunConfig config = witan::testing::small_config();
  Plan plan = make_plan(resolve(config, {}));
  plan.step_flops = 1e9;
  Timing timing;
  timing.step.seconds = 1;
  timing.steps = 30;
  timing.run_seconds = 30;
  const auto work = [&](double ceiling, bool busy) {
    timing.ceilings.fma_flops = ceiling;
    timing.ceilings.busy = busy;
    const std::string all =
        said([&](Progress& progress) { cli::announce(resolve(config, {}), plan, timing, 0, progress); });
    return all.substr(all.find("work  "));
  };
  EXPECT_TRUE(contains(work(2e9, false), "each: about 30 s at 50 % of this machine's 2 GFLOP/s\n")) << work(2e9, false);
  EXPECT_TRUE(contains(work(2e9, true), "GFLOP/s, measured while it was busy (`witan doctor` measures again)\n"))
      << work(2e9, true);
  config.parallel.ranks_per_process = 1;  // started by a launcher, which measures at every start
  EXPECT_TRUE(contains(work(2e9, true), "GFLOP/s, measured while it was busy\n")) << work(2e9, true);
  config.parallel.ranks_per_process = 0;
  const std::string above = work(0.5e9, false);
  EXPECT_TRUE(
      contains(above,
               "each: about 30 s; this machine was busy when its ceiling was measured, so that no share of it is "
               "known: `witan doctor` measures it again\n"))
      << above;
}

TEST(TrainPage, WarnsOfMoreThreadsThanCores) {
  ParallelConfig parallel;
  parallel.device = "cpu";
  parallel.ranks = 1;
  parallel.threads = 500;
  const auto warning = cli::too_many_threads(parallel, 2);
  ASSERT_TRUE(warning);
  EXPECT_TRUE(contains(*warning, "threads = 500 is more than the 2 cores that there are")) << *warning;
  parallel.threads = 2;
  EXPECT_FALSE(cli::too_many_threads(parallel, 2));
  parallel.ranks = 2;
  ASSERT_TRUE(cli::too_many_threads(parallel, 2));
  EXPECT_TRUE(contains(*cli::too_many_threads(parallel, 2), "threads = 2 for each of 2 ranks"));
  parallel.ranks_per_process = 1;  // on separate machines or with separate cores
  EXPECT_FALSE(cli::too_many_threads(parallel, 2));
  parallel.ranks_per_process = 0;
  parallel.ranks = 8;
  parallel.threads = 1;  // ranks that share cores are a way to try a layout
  EXPECT_FALSE(cli::too_many_threads(parallel, 2));

  RunConfig config = witan::testing::small_config();
  config.parallel.threads = 4096;
  Timing timing;
  timing.step.seconds = 1;
  timing.ceilings.fma_flops = 1e12;
  const ResolvedConfig resolved = resolve(config, {});
  Plan plan;  // a line needs no pool with so many threads
  plan.ranks.resize(1);
  const std::string all = said([&](Progress& progress) { cli::announce(resolved, plan, timing, 0, progress); });
  EXPECT_TRUE(contains(all, "\nwarning: threads = 4096 ")) << all;
}

// A single tag can differ although the arena's end does not.
TEST(TrainPage, ReportsAsPlannedOnlyIfEveryTagOfEveryRankMatches) {
  const RunConfig config = witan::testing::small_config();
  MemoryEvent rank;
  rank.tags = {{"communication", 512}, {"weights", 1024}};
  rank.peak = 1536;
  MemoryEvent other = rank;
  other.rank = 1;
  RunPlan plan;
  plan.memory = {rank, other};
  RunResult result;
  result.end = RunEnd::finished;
  result.memory = plan.memory;
  const auto summary = [&] {
    return said([&](Progress& progress) {
      Capture out;
      std::FILE* in = std::tmpfile();
      cli::summarise({in, out.file(), out.file()}, resolve(config, {}), plan, result, {}, "run/report.html", progress);
      std::fclose(in);
    });
  };
  EXPECT_TRUE(contains(summary(), "arenas of 2 ranks used 3.00 KiB, as planned\n")) << summary();
  result.memory[1].tags["communication"] = 1024;
  EXPECT_TRUE(contains(summary(),
                       "arenas of 2 ranks used 3.00 KiB, of 3.00 KiB planned\n"
                       "             rank 1: communication 1024 of 512 bytes planned\n"))
      << summary();
  result.end = RunEnd::preempted;
  EXPECT_TRUE(contains(summary(), "arenas of 2 ranks used 3.00 KiB, of 3.00 KiB planned\n")) << summary();
  EXPECT_FALSE(contains(summary(), "rank 1")) << summary();
}

// A process knows only its own memory, but the arenas of all ranks.
TEST(TrainPage, AttributesMemoryToRanksAndTheProcess) {
  RunConfig config = witan::testing::small_config();
  RunPlan plan;
  for (int rank = 0; rank < 4; ++rank) {
    plan.memory.emplace_back();
    plan.memory.back().rank = rank;
    plan.memory.back().peak = 1024;
  }
  plan.resident_bytes = 8192;
  RunResult result;
  result.end = RunEnd::finished;
  const auto summary = [&](size_t ranks, int64_t of_process) {
    config.parallel.ranks = static_cast<int64_t>(ranks);
    config.parallel.ranks_per_process = of_process;
    plan.memory.resize(ranks);
    result.memory = plan.memory;
    result.peak_resident = 4096;
    const std::string all = said([&](Progress& progress) {
      Capture out;
      std::FILE* in = std::tmpfile();
      cli::summarise({in, out.file(), out.file()}, resolve(config, {}), plan, result, {}, "run/report.html", progress);
      std::fclose(in);
    });
    const size_t begin = all.find("arenas");
    return all.substr(begin, all.find('\n', begin) - begin);
  };
  const std::string most = " 4.00 KiB at most, of 8.00 KiB planned";
  EXPECT_EQ(summary(4, 2), "arenas of 4 ranks used 4.00 KiB, as planned; the process of ranks 0 to 1" + most);
  EXPECT_EQ(summary(4, 1), "arenas of 4 ranks used 4.00 KiB, as planned; the process of rank 0" + most);
  EXPECT_EQ(summary(4, 0), "arenas of 4 ranks used 4.00 KiB, as planned; the process" + most);
  EXPECT_EQ(summary(1, 0), "arenas used 1.00 KiB, as planned; the process" + most);
  plan.offload_bytes = 2048;
  EXPECT_EQ(summary(1, 0), "arenas used 1.00 KiB, as planned; the process" + most +
                               "; 2.00 KiB of the host's memory are pinned for activations");
}

// Early stopping without a checkpoint of the best weights loses them.
TEST(TrainPage, EarlyStoppingReportsWhereTheBestWeightsAreLost) {
  const TempFolder folder;
  RunConfig config = witan::testing::small_config();
  config.train.train_iters = 100;
  config.train.eval_interval = 10;
  RunResult result;
  result.end = RunEnd::stopped_early;
  result.step = 50;
  result.validation = {2.5, 30, 2};
  const auto stopped = [&](int64_t save_interval, int64_t keep_best) {
    config.train.save_interval = save_interval;
    config.train.keep_best = keep_best;
    const std::string all = said([&](Progress& progress) {
      Capture out;
      std::FILE* in = std::tmpfile();
      cli::summarise({in, out.file(), out.file()}, resolve(config, {}), {}, result, {}, folder / "report.html",
                     progress);
      std::fclose(in);
    });
    const size_t begin = all.find("\nstopped "), times = all.find("times in a row (early_stopping_patience)", begin);
    EXPECT_NE(times, std::string::npos) << all;
    const size_t end = all.find(')', times) + 1;
    return all.substr(end, all.find('\n', end) - end);
  };
  EXPECT_EQ(stopped(10, 0), "; the weights of step 30 were deleted: keep_best = 1 keeps them");
  EXPECT_EQ(stopped(25, 0),
            "; the weights of step 30 were not saved: save_interval = 10 with keep_best = 1 saves and keeps them");
  EXPECT_EQ(stopped(25, 1), "") << "the line of the best checkpoint reports it";
  EXPECT_EQ(stopped(10, 1), "") << "another checkpoint was better";
  fs::create_directories(folder / "checkpoints/step-30");
  for (const int64_t keep_best : {0, 1}) EXPECT_EQ(stopped(10, keep_best), "") << "it is one of the newest";
}

// `--run NAME@best` requires weights that exist.
class TrainPageBest : public ::testing::Test {
 protected:
  TrainPageBest() {
    config_.train.train_iters = 100;
    config_.train.eval_interval = 10;
    config_.train.keep_best = 1;
    config_.train.run = "mine";
    config_.train.sample_prompt = "The";
    result_.end = RunEnd::stopped_early;
    result_.step = 50;
    result_.validation = {2.5, 30, 2};
  }
  void save(int64_t step, double loss) {
    CheckpointContent content;
    content.step = step;
    content.scalars = {{kValidationLoss, loss}};
    ThreadWorld world(1);
    world.run([&](int) {
      ThreadPool pool(1);
      Stream stream({}, reserve_arena({}, int64_t{1} << 20), pool);
      const auto group = world.group(0, {0}, "checkpoint");
      content.tensors = {{"a", stream.zeros({1}, DType::f32), {1}, {0, 1}}};
      save_checkpoint(*group, stream, folder_ / "checkpoints", content);
    });
  }
  std::string summary() {
    return said([&](Progress& progress) {
      Capture out;
      std::FILE* in = std::tmpfile();
      cli::summarise({in, out.file(), out.file()}, resolve(config_, {}), {}, result_, {}, folder_ / "report.html",
                     progress);
      std::fclose(in);
    });
  }

  const TempFolder folder_;
  RunConfig config_ = witan::testing::small_config();
  RunResult result_;
};

TEST_F(TrainPageBest, RefersToKeptWeights) {
  config_.train.save_interval = 25;
  EXPECT_TRUE(contains(summary(),
                       "\nbest         no checkpoint was evaluated; 2.5000 at step 30 was the lowest validation loss; "
                       "the weights of step 30 were not saved"))
      << summary();
  save(50, 2.75);
  EXPECT_TRUE(contains(summary(),
                       "\nbest         validation loss 2.7500 at step 50; 2.5000 at step 30 was lower; the weights of "
                       "step 30 were not saved: save_interval = 10 saves them\n"))
      << summary();
  save(30, 2.5);
  EXPECT_TRUE(contains(summary(), "\nbest         validation loss 2.5000 at step 30\n")) << summary();
  config_.train.keep_best = 0;
  EXPECT_FALSE(contains(summary(), "\nbest ")) << summary();
}

TEST_F(TrainPageBest, IsUsedByCommandsIfItIsNotTheLast) {
  save(50, 2.75);
  EXPECT_TRUE(contains(summary(), " generate --run mine The\n")) << summary();
  save(30, 2.5);
  EXPECT_TRUE(contains(summary(), " generate --run mine@best The\n")) << summary();
  EXPECT_TRUE(contains(summary(), " train --run mine --early-stopping-patience 0\n")) << summary();
  EXPECT_TRUE(contains(summary(), " report --run mine\n")) << summary();
  config_.train.keep_best = 0;
  EXPECT_TRUE(contains(summary(), " generate --run mine The\n")) << summary();
}

TEST(TrainPage, AJumpOfTheLearningRateNamesAFlagThatPreventsIt) {
  RunConfig before = witan::testing::small_config();
  before.train.train_iters = 100;
  const auto warning = [&](const RunConfig& now, int64_t done) {
    return cli::schedule_warning(before, now, done).value_or("");
  };
  RunConfig longer = before;
  longer.train.train_iters = 200;
  EXPECT_TRUE(contains(warning(longer, 100), "; --lr-decay-iters 100 keeps the old one")) << warning(longer, 100);
  longer.optimizer.lr_decay_iters = 100;
  EXPECT_EQ(warning(longer, 100), "");
  before.optimizer.lr_decay_iters = 80;
  longer.optimizer.lr_decay_iters = 0;
  EXPECT_TRUE(contains(warning(longer, 100), "; --lr-decay-iters 80 keeps the old one")) << warning(longer, 100);
  RunConfig faster = before;
  faster.optimizer.lr *= 2;
  EXPECT_TRUE(contains(warning(faster, 50), "; --use-checkpoint-opt-param-scheduler keeps the old one"))
      << warning(faster, 50);
  EXPECT_EQ(warning(faster, 0), "") << "no step was trained";
}

}  // namespace
}  // namespace witan::test
