// A mutex that can be waited for until some time. std::timed_mutex does that by a system call that thread sanitizers do
// not see (pthread_mutex_clocklock), and they take its unlocking for an error.
#pragma once

#include <mutex>
#include <utility>

#include "witan/base/threads/mutex.h"

namespace witan {

class WITAN_CAPABILITY("mutex") TimedMutex {
 public:
  void lock() WITAN_ACQUIRE() {
    MutexLock lock(mutex_);
    while (held_) freed_.wait(lock);
    held_ = true;
  }

  bool try_lock() WITAN_TRY_ACQUIRE(true) {
    const MutexLock lock(mutex_);
    return !std::exchange(held_, true);
  }

  bool try_lock_until(CondVar::Time end) WITAN_TRY_ACQUIRE(true) {
    MutexLock lock(mutex_);
    while (held_)
      if (!freed_.wait_until(lock, end) && held_) return false;
    return held_ = true;
  }

  void unlock() WITAN_RELEASE() {
    const MutexLock lock(mutex_);
    held_ = false;
    freed_.notify_one();
  }

  // Tells the thread-safety analysis that the mutex is held, like Mutex::assert_held().
  void assert_held() const WITAN_ASSERT_HELD(this) {}

 private:
  Mutex mutex_;
  CondVar freed_;
  bool held_ WITAN_GUARDED_BY(mutex_) = false;
};

// Holds a timed mutex as long as it lives.
class WITAN_SCOPED_CAPABILITY TimedMutexLock {
 public:
  explicit TimedMutexLock(TimedMutex& mutex) WITAN_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // Takes over what try_lock() or try_lock_until() has locked.
  TimedMutexLock(TimedMutex& mutex, std::adopt_lock_t) WITAN_REQUIRES(mutex) : mutex_(mutex) {}
  ~TimedMutexLock() WITAN_RELEASE() { mutex_.unlock(); }
  TimedMutexLock(const TimedMutexLock&) = delete;
  TimedMutexLock& operator=(const TimedMutexLock&) = delete;

 private:
  TimedMutex& mutex_;
};

}  // namespace witan
