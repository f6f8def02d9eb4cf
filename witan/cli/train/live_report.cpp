#include "witan/cli/train/live_report.h"

#include <utility>

#include "witan/base/error.h"
#include "witan/report/html.h"

namespace witan::cli {

using Clock = std::chrono::steady_clock;

LiveReport::LiveReport(fs::path folder, double seconds)
    : folder_(std::move(folder)), seconds_(seconds), due_(Clock::now()), ticker_(seconds, [this] { write(); }) {}

void LiveReport::write() {
  const auto begin = Clock::now();
  if (begin < due_) return;
  try {
    write_report(folder_, read_metrics(folder_ / "metrics.jsonl"), seconds_);
  } catch (const Error&) {  // no step yet, or no room
  }
  due_ = begin + 100 * (Clock::now() - begin);
}

}  // namespace witan::cli
