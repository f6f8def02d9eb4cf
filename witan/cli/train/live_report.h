// report.html of a run that goes on: any server of static files can show it.
#pragma once

#include <chrono>

#include "witan/base/files/file.h"
#include "witan/report/events/metrics_follower.h"
#include "witan/report/progress/timing.h"

namespace witan::cli {

// Writes the report of the run in `folder` every so many seconds, from a thread of its own, as a page that loads itself
// again as often. A report that takes longer is written less often, so that it takes a hundredth of the time at most.
// Each reads what was recorded since the one before, and keeps as much of a long run as of a short one. What cannot be
// written is left, as a later one may be, and the run's end writes its own.
class LiveReport {
 public:
  static constexpr double kSeconds = 60;

  explicit LiveReport(fs::path folder, double seconds = kSeconds);

 private:
  void write();

  const fs::path folder_;
  const double seconds_;
  MetricsFollower recorded_;
  std::chrono::steady_clock::time_point due_;
  Ticker ticker_;  // the last member: its thread uses the others
};

}  // namespace witan::cli
