// The progress of tokenization, for people: MB/s, tokens/s, time left.
#pragma once

#include <cstdint>
#include <string>

#include "witan/data/prepare/prepare.h"
#include "witan/report/progress/progress.h"
#include "witan/report/progress/timing.h"

namespace witan::cli {

// On a terminal one line that is redrawn. Elsewhere a line after the first seconds and then every ten, or one for every
// `log_interval` documents.
class PrepareReport {
 public:
  // `log_interval`: 0 for lines by time.
  PrepareReport(Progress& progress, std::string label, int64_t log_interval);

  void update(const PrepareProgress& at);

 private:
  bool is_due(double now, int64_t documents);
  std::string line(const PrepareProgress& at) const;

  Progress& progress_;
  std::string label_;
  int64_t log_interval_;
  RateEstimator source_, text_, tokens_;
  bool begun_ = false;
  double said_at_;  // when the last line was printed, or this began
  double quiet_seconds_ = 2;
  int64_t said_documents_ = 0;
};

}  // namespace witan::cli
