// Time in progress reports: the rate of work and the time left, the time for which the process was stopped, and regular
// updates.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "witan/base/threads/mutex.h"

namespace witan {

// Rate over about the last `window` seconds, from (time, work done) pairs. The first interval is warm-up (cold caches,
// first allocations): it only counts until there is a second one. Time is in any monotonic seconds.
class RateEstimator {
 public:
  explicit RateEstimator(double window = 30) : window_(window) {}

  // `done` must not decrease; the first call sets the start.
  void update(double now, double done);
  // Leaves out `seconds` since the last update, in which no work was done.
  void skip(double seconds) { now_ += seconds; }
  // Units per second; nothing before two updates or without progress.
  std::optional<double> rate() const;
  // Seconds until `total`, as of the last update; 0 when it is reached.
  std::optional<double> remaining(double total) const;

 private:
  double window_;
  int64_t updates_ = 0;
  double now_ = 0, done_ = 0;       // of the last update
  double seconds_ = 0, units_ = 0;  // sums over the past; older intervals have less weight
};

// Measures how long the process was stopped (SIGSTOP, Ctrl-Z, a paused virtual machine) from polls of the clock that
// are due every `interval` seconds and did not come.
class StopClock {
 public:
  // 0: polls are irregular, and nothing can be measured.
  explicit StopClock(double interval) : interval_(interval) {}

  // Returns the seconds for which the process was stopped since the last poll; 0 if the poll was merely late.
  double poll(double now);
  // The sum of what polls returned since the last call.
  double take() { return std::exchange(stopped_, 0); }

 private:
  static constexpr double kLate = 3;  // seconds that a poll may be late on a busy machine

  double interval_;
  std::optional<double> looked_at_;
  double stopped_ = 0;
};

// Calls a function at regular intervals from a thread of its own.
class Ticker {
 public:
  // Calls tick() every `seconds` until it is destroyed; 0: never, without a thread.
  Ticker(double seconds, std::function<void()> tick);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void run(double seconds);

  const std::function<void()> tick_;
  Mutex mutex_;
  bool ended_ WITAN_GUARDED_BY(mutex_) = false;
  CondVar end_;
  std::thread thread_;
};

}  // namespace witan
