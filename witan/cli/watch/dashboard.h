// The dashboard of `witan watch`: the report of one run while it trains, or of several overlaid, from their growing
// files, and the service that answers the page's requests. Thread-safe.
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
#include "witan/serve/http_server.h"

namespace witan::cli {

class Dashboard {
 public:
  // `run_folders` has at least one. Files are read again after `least_gap` at the earliest.
  explicit Dashboard(const std::vector<fs::path>& run_folders,
                     std::chrono::milliseconds least_gap = std::chrono::milliseconds(500));

  // The page as of now.
  std::string page();
  // JSON for a page with version `known`: {"version": N, "runs": [{"name", "state", "text"}]} and, if N is newer, the
  // "parts" (report/page/page.h) that have changed and "changes" (PlotHistory::since()). A page without a version, or
  // with one that is not remembered, gets all parts and "data". `state` is running, silent, ended, stopped, unreadable
  // or gone.
  std::string update(int64_t known);

 private:
  struct Run {
    fs::path folder;
    MetricsFollower follower;
    std::string error = {};  // why its metrics could not be read at the last attempt
  };

  void poll() WITAN_REQUIRES(mutex_);
  PageParts parts() const WITAN_REQUIRES(mutex_);
  nlohmann::ordered_json changed_parts(int64_t known) const WITAN_REQUIRES(mutex_);
  nlohmann::ordered_json standing() const WITAN_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Run> runs_ WITAN_GUARDED_BY(mutex_);
  const std::chrono::milliseconds least_gap_;
  std::chrono::steady_clock::time_point last_read_ WITAN_GUARDED_BY(mutex_);
  PlotHistory plots_ WITAN_GUARDED_BY(mutex_);                             // its version grows as the files change
  PageParts parts_ WITAN_GUARDED_BY(mutex_);                               // the parts of that version, without data
  std::map<std::string, int64_t> part_versions_ WITAN_GUARDED_BY(mutex_);  // the version that last changed each part
};

// Whether nothing has been recorded for much longer than a step takes. `age`: seconds since the last record.
bool is_silent(const Metrics& metrics, double age);

class WatchService {
 public:
  // Each request must have token=SECRET in its query.
  WatchService(Dashboard& dashboard, std::string secret) : dashboard_(dashboard), secret_(std::move(secret)) {}

  // GET / returns the page, GET /update?known=VERSION the changes since that version (Dashboard::update). Other methods
  // than GET and HEAD are refused, and so are requests from other sites' pages, with 403 (serve/access.h). Large
  // answers are compressed for clients that accept gzip. HEAD is answered like GET; the server omits the body.
  serve::HttpResponse answer(const serve::HttpRequest& request);

 private:
  Dashboard& dashboard_;
  std::string secret_;
};

}  // namespace witan::cli
