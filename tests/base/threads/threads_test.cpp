#include "witan/base/threads/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/message_of.h"

namespace witan {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

class Threads : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Threads, ::testing::Values(1, 2, 3, 8));

Ranges cuts(ThreadPool& pool, int64_t count, int64_t grain) {
  Ranges ranges;
  std::mutex mutex;
  pool.for_ranges(count, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST_P(Threads, RunsEachTaskOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
    pool.run(count, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
    EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& n) { return n == 1; })) << count;
  }
}

// Thousands of tiny calls, with pauses in which the workers fall asleep: a lost wake-up would hang.
TEST_P(Threads, SurvivesManySmallRuns) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum{0};
  int64_t expected = 0;
  for (int64_t round = 0; round < 4000; ++round) {
    const int64_t count = round % 5;
    pool.run(count, [&](int64_t i) { sum += i + 1; });
    expected += count * (count + 1) / 2;
    ASSERT_EQ(sum, expected);  // everything is done when run() returns
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_P(Threads, RethrowsAndStaysUsable) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 50; ++round) {
    const auto throwing = [&] {
      pool.run(16, [](int64_t i) {
        if (i == 5) throw std::invalid_argument("task five");
      });
    };
    EXPECT_EQ(test::message_of<std::invalid_argument>(throwing), "task five");
    std::atomic<int> runs{0};
    pool.run(16, [&](int64_t) { ++runs; });  // the old error was cleared
    EXPECT_EQ(runs, 16);
  }
}

TEST_P(Threads, RethrowsOneOfManyErrors) {
  ThreadPool pool(GetParam());
  EXPECT_THROW(pool.run(64, [](int64_t i) { throw std::out_of_range(std::to_string(i)); }), std::out_of_range);
}

// A task may own a pool, e.g. when ranks run as tasks.
TEST_P(Threads, PoolsNest) {
  ThreadPool outer(GetParam());
  std::atomic<int> runs{0};
  outer.run(4, [&](int64_t) {
    ThreadPool inner(2);
    inner.run(8, [&](int64_t) { ++runs; });
  });
  EXPECT_EQ(runs, 32);
}

TEST_P(Threads, RangesCoverEverythingOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{100003}})
    for (const int64_t grain : {int64_t{0}, int64_t{1}, int64_t{10}, int64_t{1000000}}) {
      const Ranges ranges = cuts(pool, count, grain);
      int64_t next = 0;
      for (const auto& [begin, end] : ranges) {
        EXPECT_EQ(begin, next);
        EXPECT_GE(end - begin, std::min(count, std::max<int64_t>(grain, 1)));
        next = end;
      }
      EXPECT_EQ(next, count);
    }
}

TEST(ThreadPoolRanges, EmptyRangesCallNothing) {
  ThreadPool pool(2);
  EXPECT_TRUE(cuts(pool, 0, 4).empty());
  EXPECT_TRUE(cuts(pool, -3, 4).empty());
}

// The number of threads must never change a result, so ranges must not depend on it.
TEST(ThreadPoolRanges, CutsDoNotDependOnThreads) {
  ThreadPool one(1), many(7);
  for (const int64_t count : {1, 100, 12345}) EXPECT_EQ(cuts(one, count, 8), cuts(many, count, 8));
}

TEST(ThreadPoolRanges, SumsInAnyOrder) {
  ThreadPool pool(4);
  std::vector<double> x(50000);
  std::iota(x.begin(), x.end(), 0.0);
  pool.for_ranges(static_cast<int64_t>(x.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[static_cast<size_t>(i)] *= 2;
  });
  EXPECT_EQ(std::accumulate(x.begin(), x.end(), 0.0), 50000.0 * 49999.0);
}

TEST(ThreadPoolLife, CanBeDestroyedIdle) {
  for (int i = 0; i < 200; ++i) ThreadPool pool(3);
}

TEST(UsableCores, IsAtLeastOneAndNoMoreThanTheMachineHas) {
  EXPECT_GE(usable_cores(), 1);
  const auto cores = std::thread::hardware_concurrency();  // zero if unknown
  EXPECT_TRUE(cores == 0 || usable_cores() <= static_cast<int>(cores));
}

TEST(SideBySide, RunsEachTaskOnce) {
  for (const size_t count : {0, 1, 15, 16, 33, 5000}) {
    std::vector<std::atomic<int>> done(count);
    side_by_side(count, [&](size_t i) { ++done[i]; });
    EXPECT_TRUE(std::ranges::all_of(done, [](const auto& times) { return times == 1; })) << count;
  }
}

TEST(SideBySide, ThrowsTheErrorOfTheLowestIndexAfterAllTasks) {
  std::atomic<int> done{0};
  std::string error;
  try {
    side_by_side(1000, [&](size_t i) {
      ++done;
      if (i % 300 == 299) throw std::runtime_error("number " + std::to_string(i));
    });
  } catch (const std::runtime_error& thrown) {
    error = thrown.what();
  }
  EXPECT_EQ(error, "number 299");
  EXPECT_EQ(done, 1000);
}

// Each of the first 32 tasks waits until all of them have begun; with fewer threads this would time out.
TEST(SideBySide, RunsManyWaitingTasksAtOnceOnAnyNumberOfCores) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t inside = 0, met = 0;
  side_by_side(1000, [&](size_t) {
    std::unique_lock lock(mutex);
    if (met >= 32) return;
    met = std::max(met, ++inside);
    changed.notify_all();
    changed.wait_for(lock, std::chrono::seconds(20), [&] { return met >= 32; });
    --inside;
  });
  EXPECT_EQ(met, 32u);
}

}  // namespace
}  // namespace witan
