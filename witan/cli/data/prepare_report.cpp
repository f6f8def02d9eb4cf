#include "witan/cli/data/prepare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "witan/base/text.h"

namespace witan::cli {

PrepareReport::PrepareReport(Progress& progress, std::string label, int64_t log_interval)
    : progress_(progress), label_(std::move(label)), log_interval_(log_interval), said_at_(progress.now()) {}

void PrepareReport::update(const PrepareProgress& at) {
  const double now = progress_.now();
  if (at.text_bytes > 0 || !begun_) {
    // Rates count from where this call began, not from what an earlier one had done.
    if (!begun_) {
      source_.update(now, 0);
      text_.update(now, 0);
      tokens_.update(now, 0);
      begun_ = true;
      said_documents_ = at.documents;
    }
    source_.update(now, static_cast<double>(at.source_bytes - std::min(at.resumed_bytes, at.source_bytes)));
    text_.update(now, static_cast<double>(at.text_bytes));
    tokens_.update(now, static_cast<double>(at.tokens - at.resumed_tokens));
  }
  const double total = static_cast<double>(std::max<uint64_t>(at.total_source_bytes, 1));
  if (progress_.is_terminal())
    progress_.update(static_cast<double>(at.source_bytes) / total, [&](int) { return line(at); });
  else if (is_due(now, at.documents))
    progress_.note(line(at));
}

bool PrepareReport::is_due(double now, int64_t documents) {
  if (log_interval_ > 0) {
    if (documents / log_interval_ == said_documents_ / log_interval_) return false;
    said_documents_ = documents;
    return true;
  }
  if (now - said_at_ < quiet_seconds_) return false;
  said_at_ = now;
  quiet_seconds_ = 10;
  return true;
}

std::string PrepareReport::line(const PrepareProgress& at) const {
  const double total = static_cast<double>(std::max<uint64_t>(at.total_source_bytes, 1));
  std::string text = fmt::format("{} {:3.0f} %  {} documents", label_,
                                 100 * std::min(1.0, static_cast<double>(at.source_bytes) / total), at.documents);
  if (const auto rate = text_.rate()) text += fmt::format("  {}/s", format_bytes(*rate));
  if (const auto rate = tokens_.rate()) text += fmt::format("  {} tokens/s", format_count(*rate));
  const auto left = source_.remaining(total - static_cast<double>(std::min(at.resumed_bytes, at.total_source_bytes)));
  if (left && *left > 0) text += "  ETA " + format_duration(*left);
  return text;
}

}  // namespace witan::cli
