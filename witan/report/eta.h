// Estimates the rate of work and the time left.
#pragma once

#include <cstdint>
#include <optional>

namespace witan {

// Rate over about the last `window` seconds, from (time, work done) pairs. The first interval is warm-up (cold caches,
// first allocations): it only counts until there is a second one. Time is in any monotonic seconds.
class RateEstimator {
 public:
  explicit RateEstimator(double window = 30) : window_(window) {}

  // `done` must not decrease; the first call sets the start.
  void update(double now, double done);
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

}  // namespace witan
