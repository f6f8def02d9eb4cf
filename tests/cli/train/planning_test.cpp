#include "witan/cli/train/planning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <latch>
#include <thread>

#include "support/process_state.h"
#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/base/threads/threads.h"

namespace witan::cli {
namespace {

int64_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// The largest number of additional threads of this process while work() runs, without the counting thread; a
// sanitizer's own thread starts with the first one.
template <class Work>
int64_t most_threads(const Work& work) {
  std::atomic<bool> over = false;
  std::atomic<int64_t> most = 0;
  std::latch counting(1);
  std::thread watch([&] {
    const int64_t before = threads_of_process();
    counting.count_down();
    while (!over) {
      most = std::max<int64_t>(most, threads_of_process() - before);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  counting.wait();
  work();
  over = true;
  watch.join();
  return most;
}

TEST(Planning, QuickSpeedsMeasureAllPeaksWithOnePool) {
  const test::TempFolder cache;
  const test::Variable variable("XDG_CACHE_HOME", cache.path().string());
  RunConfig given = testing::small_config();
  given.parallel.ranks = 2;
  const ResolvedConfig config = resolve(given, {});
  Speeds speeds;
  const int64_t most = most_threads([&] { speeds = quick_speeds(config, std::nullopt); });
  EXPECT_LT(most, std::min(2, usable_cores())) << "including the caller";
  EXPECT_EQ(speeds.source, "the peaks of multiply-adds and copying");
  EXPECT_GT(speeds.ceilings.fma_flops, 0);
  EXPECT_GT(speeds.ceilings.copy_bytes, 0);
}

TEST(Planning, QuickSpeedsRepeatPeaksOfABusyMachine) {
  const test::TempFolder cache;
  const test::Variable variable("XDG_CACHE_HOME", cache.path().string());
  RunConfig given = testing::small_config();
  given.parallel.ranks = 1;
  const ResolvedConfig config = resolve(given, {});
  Ceilings kept;
  kept.load = load_of(config, usable_cores());
  kept.fma_flops = 1;
  kept.copy_bytes = 1e10;
  kept.kernels["gemm"] = {1e9, 1e6, 1};  // the mean rate for all others
  ceilings_file().keep(kept);
  EXPECT_EQ(quick_speeds(config, std::nullopt).ceilings.fma_flops, 1);
  kept.busy = true;
  ceilings_file().keep(kept);
  const Speeds speeds = quick_speeds(config, std::nullopt);
  EXPECT_GT(speeds.ceilings.fma_flops, 1e6);
  EXPECT_EQ(speeds.ceilings.copy_bytes, 1e10);
}

const KeepsKey kKeepsNone = [](const std::string&) { return false; };

// A step takes a second and evaluations take no time, so a run of N steps takes N seconds.
TEST(Planning, AShortenedRunHasTheLargestRoundNumberOfStepsThatFits) {
  StepTime second;
  second.seconds = 1;
  const auto within = [&](double seconds, int64_t whole) {
    RunConfig config;
    config.parallel.ranks = 1;
    config.train.train_iters = whole;
    return steps_within(seconds, second, config, kKeepsNone);
  };
  EXPECT_EQ(within(1000, 1000), std::nullopt);
  EXPECT_EQ(within(999, 1000), 950);
  EXPECT_EQ(within(360, 1000), 350);
  EXPECT_EQ(within(350, 1000), 350);
  EXPECT_EQ(within(349, 1000), 300);
  EXPECT_EQ(within(4321, 98765), 4000);
  EXPECT_EQ(within(1, 1000), kFewestSteps);
  EXPECT_EQ(within(1, kFewestSteps), std::nullopt) << "not shorter";
}

// A shortened run has as many evaluations as the full one: here ten, of 16 micro-batches each.
TEST(Planning, CountsEvaluationsOfAShortenedRun) {
  RunConfig config;
  config.parallel.ranks = 1;
  StepTime second;
  second.seconds = second.eval_seconds = 1;
  EXPECT_EQ(steps_within(320, second, config, kKeepsNone), 150);
}

TEST(Planning, ScheduleFollowsTheStepsOfAShortenedRun) {
  RunConfig whole;
  whole.train.sample_interval = 500;
  whole.optimizer.lr_warmup_iters = 100;
  whole.optimizer.lr_decay_iters = 900;
  whole.optimizer.lr_wsd_decay_iters = 200;
  whole.optimizer.ademamix_warmup_iters = 1000;
  const RunConfig third = with_fewer_steps(whole, 300, kKeepsNone);
  EXPECT_EQ(third.train.train_iters, 300);
  EXPECT_EQ(third.train.eval_interval, 30);
  EXPECT_EQ(third.train.save_interval, 60);
  EXPECT_EQ(third.train.sample_interval, 150);
  EXPECT_EQ(third.optimizer.lr_warmup_iters, 30);
  EXPECT_EQ(third.optimizer.lr_decay_iters, 270);
  EXPECT_EQ(third.optimizer.lr_wsd_decay_iters, 60);
  EXPECT_EQ(third.optimizer.ademamix_warmup_iters, 300);
  const RunConfig own = with_fewer_steps(whole, 300, [](const std::string& key) { return key == "eval_interval"; });
  EXPECT_EQ(own.train.eval_interval, 100) << "as given";
  EXPECT_EQ(own.train.save_interval, 60);
}

TEST(Planning, KeepsAMinimumWarmUp) {
  RunConfig whole;
  whole.optimizer.lr_warmup_iters = 20;
  EXPECT_EQ(with_fewer_steps(whole, 100, kKeepsNone).optimizer.lr_warmup_iters, 10);
  whole.optimizer.lr_warmup_iters = 4;
  EXPECT_EQ(with_fewer_steps(whole, 100, kKeepsNone).optimizer.lr_warmup_iters, 4);
  whole.optimizer.lr_warmup_iters = 0;
  EXPECT_EQ(with_fewer_steps(whole, 100, kKeepsNone).optimizer.lr_warmup_iters, 0);
}

}  // namespace
}  // namespace witan::cli
