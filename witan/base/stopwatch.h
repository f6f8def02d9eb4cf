// Seconds by the steady clock, since it was made or since the process began.
#pragma once

#include <chrono>

namespace witan {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// Since the program was loaded.
double process_seconds();

}  // namespace witan
