// What the dashboard of `witan watch` shows: the report of runs that go on, or of several over each other, from their
// files as they grow. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/threads/mutex.h"
#include "witan/report/events/metrics_follower.h"
#include "witan/report/page/page.h"
#include "witan/report/page/plot_history.h"

namespace witan::cli {

class Dashboard {
 public:
  // Of at least one run. Their files are looked at no more often than `least_gap` allows.
  explicit Dashboard(const std::vector<fs::path>& run_folders,
                     std::chrono::milliseconds least_gap = std::chrono::milliseconds(500));

  // The page as of now.
  std::string page();
  // JSON for a page that has version `known`: {"version": N, "runs": [{"name", "state", "text"}]}, and where N is
  // another, "parts" (report/page/page.h) that have changed since, and "changes" (PlotHistory::since()). A page whose
  // version is not remembered, or none, gets all parts and "data". `state` is running, silent, ended, stopped,
  // unreadable or gone.
  std::string update(int64_t known);

 private:
  struct Run {
    fs::path folder;
    MetricsFollower follower;
    std::string error = {};  // why its metrics could not be read the last time
  };

  void poll() WITAN_REQUIRES(mutex_);
  PageParts parts() const WITAN_REQUIRES(mutex_);
  nlohmann::ordered_json changed_parts(int64_t known) const WITAN_REQUIRES(mutex_);
  nlohmann::ordered_json standing() const WITAN_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Run> runs_ WITAN_GUARDED_BY(mutex_);
  const std::chrono::milliseconds least_gap_;
  std::chrono::steady_clock::time_point looked_ WITAN_GUARDED_BY(mutex_);
  PlotHistory plots_ WITAN_GUARDED_BY(mutex_);                             // its version grows with what the files say
  PageParts parts_ WITAN_GUARDED_BY(mutex_);                               // of that version, without data
  std::map<std::string, int64_t> part_versions_ WITAN_GUARDED_BY(mutex_);  // since which each part is as it is
};

// Whether the run has been silent for longer than its steps take: `age` is the time since something was recorded.
bool is_silent(const Metrics& metrics, double age);

}  // namespace witan::cli
