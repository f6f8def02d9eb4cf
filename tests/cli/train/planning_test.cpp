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
#include "train/run/run_support.h"
#include "witan/base/threads/threads.h"

namespace witan::cli {
namespace {

int64_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// The most threads that this process has while work() runs, beside those before and the one that counts them: a
// sanitizer's own begins with the first thread.
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

TEST(Planning, QuickTimingsMeasureAllPeaksWithOnePoolOfThreads) {
  const test::TempFolder cache;
  const test::Variable variable("XDG_CACHE_HOME", cache.path().string());
  RunConfig given = testing::small_config();
  given.parallel.ranks = 2;
  const ResolvedConfig config = resolve(given, {});
  const Plan plan = plan_of(config, nullptr);
  Timing timing;
  const int64_t most = most_threads([&] { timing = quick_timing_of(plan, config, 0, 1, std::nullopt); });
  EXPECT_LT(most, std::min(2, usable_cores())) << "the caller is one of them";
  EXPECT_EQ(timing.source, "the peaks of multiply-adds and copying");
  EXPECT_GT(timing.ceilings.fma_flops, 0);
  EXPECT_GT(timing.ceilings.copy_bytes, 0);
}

TEST(Planning, QuickTimingsMeasureThePeakOfABusyMachineAgain) {
  const test::TempFolder cache;
  const test::Variable variable("XDG_CACHE_HOME", cache.path().string());
  RunConfig given = testing::small_config();
  given.parallel.ranks = 1;
  const ResolvedConfig config = resolve(given, {});
  const Plan plan = plan_of(config, nullptr);
  Ceilings kept;
  kept.load = load_of(config, usable_cores());
  kept.fma_flops = 1;
  kept.copy_bytes = 1e10;
  kept.kernels["gemm"] = {1e9, 1e6, 1};  // and so all others
  ceilings_file().keep(kept);
  EXPECT_EQ(quick_timing_of(plan, config, 0, 1, std::nullopt).ceilings.fma_flops, 1);
  kept.busy = true;
  ceilings_file().keep(kept);
  const Timing timing = quick_timing_of(plan, config, 0, 1, std::nullopt);
  EXPECT_GT(timing.ceilings.fma_flops, 1e6);
  EXPECT_EQ(timing.ceilings.copy_bytes, 1e10);
}

}  // namespace
}  // namespace witan::cli
