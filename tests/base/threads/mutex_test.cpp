#include "witan/base/threads/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace witan {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Counter {
  Mutex mutex;
  CondVar changed;
  int64_t count WITAN_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, IsHeldByOneAtATime) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) {
        const MutexLock lock(counter.mutex);
        ++counter.count;
      }
    });
  for (auto& thread : threads) thread.join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.count, 4000);
}

TEST(CondVar, WakesWaiters) {
  Counter counter;
  std::thread waits([&] {
    MutexLock lock(counter.mutex);
    while (counter.count == 0) counter.changed.wait(lock);
    ++counter.count;
  });
  {
    const MutexLock lock(counter.mutex);
    counter.count = 1;
  }
  counter.changed.notify_all();
  waits.join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.count, 2);
}

TEST(CondVar, HonoursTheTimeout) {
  Counter counter;
  MutexLock lock(counter.mutex);
  const auto end = steady_clock::now() + milliseconds(20);
  while (counter.changed.wait_until(lock, end)) {
  }
  EXPECT_GE(steady_clock::now(), end);
}

}  // namespace
}  // namespace witan
