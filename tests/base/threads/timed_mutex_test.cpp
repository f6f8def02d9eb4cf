#include "witan/base/threads/timed_mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

namespace witan {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(TimedMutex, IsHeldByOneAtATime) {
  TimedMutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) {
        const TimedMutexLock held(mutex);
        ++count;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(TimedMutex, HonoursTheTimeout) {
  TimedMutex mutex;
  const TimedMutexLock held(mutex);
  std::thread([&] {
    EXPECT_FALSE(mutex.try_lock());
    const auto start = steady_clock::now();
    EXPECT_FALSE(mutex.try_lock_until(start + milliseconds(20)));
    EXPECT_GE(steady_clock::now() - start, milliseconds(20));
  }).join();
}

TEST(TimedMutex, WakesWaiters) {
  TimedMutex mutex;
  for (int round = 0; round < 500;
       ++round) {  // in some rounds the thread is already waiting when the mutex is released
    std::promise<void> begun;
    bool got = false;
    mutex.lock();
    std::thread waits([&] {
      begun.set_value();
      if (!mutex.try_lock_until(steady_clock::now() + std::chrono::minutes(1))) return;
      const TimedMutexLock held(mutex, std::adopt_lock);
      got = true;
    });
    begun.get_future().wait();
    mutex.unlock();
    waits.join();
    ASSERT_TRUE(got);
  }
  const bool free = mutex.try_lock();
  EXPECT_TRUE(free);
  if (free) mutex.unlock();
}

}  // namespace
}  // namespace witan
