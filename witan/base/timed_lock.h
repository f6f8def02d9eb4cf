// A mutex that can be waited for until some time. std::timed_mutex does that by a system call that thread sanitizers do
// not see (pthread_mutex_clocklock), and they take its unlocking for an error.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

namespace witan {

// As the standard's TimedLockable, for std::unique_lock and std::lock_guard.
class TimedLock {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [this] { return !held_; });
    held_ = true;
  }

  bool try_lock() {
    const std::lock_guard lock(mutex_);
    return !std::exchange(held_, true);
  }

  template <class Time>
  bool try_lock_until(const Time& end) {
    std::unique_lock lock(mutex_);
    if (!freed_.wait_until(lock, end, [this] { return !held_; })) return false;
    return held_ = true;
  }

  void unlock() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    freed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  bool held_ = false;
};

}  // namespace witan
