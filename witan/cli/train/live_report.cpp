#include "witan/cli/train/live_report.h"

#include <exception>
#include <utility>

#include "witan/report/page/page.h"

namespace witan::cli {

using Clock = std::chrono::steady_clock;

LiveReport::LiveReport(fs::path folder, double seconds)
    : folder_(std::move(folder)),
      seconds_(seconds),
      recorded_(follow_for_report(folder_)),
      due_(Clock::now()),
      ticker_(seconds, [this] { write(); }) {}

void LiveReport::write() {
  const auto begin = Clock::now();
  if (begin < due_) return;
  try {
    recorded_.read_more();
    write_report(folder_, recorded_.metrics(), seconds_);
  } catch (const std::exception&) {  // no step yet, or no room: nothing that the run should end for
  }
  due_ = begin + 100 * (Clock::now() - begin);
}

}  // namespace witan::cli
