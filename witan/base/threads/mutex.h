// Mutexes whose use Clang checks at compile time: what a mutex guards is declared, and reading it without the mutex is
// an error of `make lint` (clang.llvm.org/docs/ThreadSafetyAnalysis.html). Other compilers see plain standard mutexes.
//
//   class Account {
//     void deposit(int64_t cents) {
//       const MutexLock lock(mutex_);
//       add(cents);
//     }
//     void add(int64_t cents) WITAN_REQUIRES(mutex_) { balance_ += cents; }
//
//     Mutex mutex_;
//     int64_t balance_ WITAN_GUARDED_BY(mutex_) = 0;
//   };
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define WITAN_THREAD_ANNOTATION(...) __attribute__((__VA_ARGS__))
#else
#define WITAN_THREAD_ANNOTATION(...)
#endif
// Mark a class whose objects are locks, or hold a lock during their lifetime.
#define WITAN_CAPABILITY(name) WITAN_THREAD_ANNOTATION(capability(name))
#define WITAN_SCOPED_CAPABILITY WITAN_THREAD_ANNOTATION(scoped_lockable)
// Marks data that is accessed only while the mutex is held.
#define WITAN_GUARDED_BY(mutex) WITAN_THREAD_ANNOTATION(guarded_by(mutex))
// Mark a function that is called only while the mutex is held, or acquires it, releases it, or asserts that it is held.
#define WITAN_REQUIRES(...) WITAN_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define WITAN_ACQUIRE(...) WITAN_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define WITAN_TRY_ACQUIRE(...) WITAN_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define WITAN_RELEASE(...) WITAN_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define WITAN_ASSERT_HELD(...) WITAN_THREAD_ANNOTATION(assert_capability(__VA_ARGS__))
#define WITAN_NO_THREAD_SAFETY_ANALYSIS WITAN_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace witan {

class WITAN_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Tells the analysis, which does not look through callbacks, that the mutex is held here. Checks nothing.
  void assert_held() const WITAN_ASSERT_HELD(this) {}

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex as long as it lives.
class WITAN_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WITAN_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() WITAN_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// A condition variable. Waiting may end early: wait in a loop, as in `while (!ready_) changed_.wait(lock);`, where the
// analysis sees the condition.
class CondVar {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // False once `end` has passed.
  bool wait_until(MutexLock& lock, Time end) {
    return condition_.wait_until(lock.lock_, end) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace witan
