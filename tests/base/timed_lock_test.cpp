#include "witan/base/timed_lock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace witan {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(TimedLock, IsHeldByOneAtATime) {
  TimedLock lock;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) {
        const std::lock_guard held(lock);
        ++count;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(TimedLock, IsNotWaitedForLongerThanSaid) {
  TimedLock lock;
  const std::lock_guard held(lock);
  std::thread([&] {
    EXPECT_FALSE(lock.try_lock());
    const auto start = steady_clock::now();
    EXPECT_FALSE(std::unique_lock(lock, start + milliseconds(20)).owns_lock());
    EXPECT_GE(steady_clock::now() - start, milliseconds(20));
  }).join();
}

TEST(TimedLock, WakesWhoeverWaitsWhenItIsFree) {
  TimedLock lock;
  lock.lock();
  bool got = false;
  std::thread waits([&] { got = std::unique_lock(lock, steady_clock::now() + std::chrono::minutes(1)).owns_lock(); });
  std::this_thread::sleep_for(milliseconds(20));
  lock.unlock();
  waits.join();
  EXPECT_TRUE(got);
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

}  // namespace
}  // namespace witan
