#include "witan/cli/train/live_report.h"

#include <exception>
#include <system_error>
#include <utility>

#include "witan/report/html.h"

namespace witan::cli {

using Clock = std::chrono::steady_clock;

LiveReport::LiveReport(fs::path folder, double seconds)
    : folder_(std::move(folder)), seconds_(seconds), due_(Clock::now()), ticker_(seconds, [this] { write(); }) {}

void LiveReport::write() {
  const auto begin = Clock::now();
  if (begin < due_) return;
  const fs::path metrics = folder_ / "metrics.jsonl";
  std::error_code error;
  const auto bytes = fs::file_size(metrics, error);
  if (error || bytes > kMostBytes) return;
  try {
    write_report(folder_, read_metrics(metrics), seconds_);
  } catch (const std::exception&) {  // no step yet, or no room: nothing that the run should end for
  }
  due_ = begin + 100 * (Clock::now() - begin);
}

}  // namespace witan::cli
