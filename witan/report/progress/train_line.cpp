#include "witan/report/progress/train_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/base/text.h"
#include "witan/report/progress/progress.h"

namespace witan {
namespace {

struct Item {
  int rank;  // 0 stays; the highest is left out first
  std::string label, value, unit;
};

std::vector<Item> items_of(const TrainStatus& s) {
  std::vector<Item> items;
  items.push_back({0, "step ", fmt::format("{}/{}", s.step, s.total_steps), ""});
  if (!s.current_activity.empty()) items.push_back({1, "", "(" + s.current_activity + ")", ""});
  items.push_back({0, "loss ", fmt::format("{:.3f}", unsigned_nan(s.loss)), ""});
  // Follows the item that is dropped last.
  const std::string at = s.evaluated_at == s.step ? "" : fmt::format(" at step {}", s.evaluated_at);
  if (s.validation_loss)
    items.push_back({3, "validation ", fmt::format("{:.3f}", *s.validation_loss), s.bits_per_byte ? "" : at});
  if (s.bits_per_byte) items.push_back({2, "", fmt::format("{:.3f}", *s.bits_per_byte), " bits/byte" + at});
  if (s.learning_rate) items.push_back({5, "lr ", fmt::format("{:.3g}", *s.learning_rate), ""});
  if (s.grad_norm) items.push_back({4, "grad norm ", fmt::format("{:.3g}", unsigned_nan(*s.grad_norm)), ""});
  items.push_back({1, "", format_count(s.tokens_per_s), " tok/s"});
  std::string share =
      s.ceiling_share ? fmt::format(" GFLOP/s ({:.0f} % of ceiling)", 100 * *s.ceiling_share) : " GFLOP/s";
  items.push_back({5, "", fmt::format("{:.3g}", s.gflops), std::move(share)});
  if (s.load_max_over_mean) items.push_back({4, "load max/mean ", fmt::format("{:.2f}", *s.load_max_over_mean), ""});
  if (s.dropped_share) items.push_back({4, "dropped ", fmt::format("{:.1f} %", 100 * *s.dropped_share), ""});
  if (s.epochs && *s.epochs > 1) items.push_back({4, "epoch ", fmt::format("{:.2f}", *s.epochs), ""});
  items.push_back({6, "data wait ", fmt::format("{:.0f} %", 100 * s.data_wait_share), ""});
  for (const auto& [key, text, value] : s.scalars.shown(&StepScalar::progress))
    items.push_back({7, text.label, format_value(text, value), text.unit});
  if (s.eta_s) items.push_back({1, "ETA ", format_duration(*s.eta_s), ""});
  return items;
}

std::string join(const std::vector<Item>& items, bool colour) {
  const auto dim = [&](const std::string& text) {
    return colour && !text.empty() ? "\x1b[2m" + text + "\x1b[0m" : text;
  };
  std::string line;
  for (const Item& item : items) line += (line.empty() ? "" : "  ") + dim(item.label) + item.value + dim(item.unit);
  return line;
}

}  // namespace

std::string format_train_line(const TrainStatus& status, int width, bool colour) {
  std::vector<Item> items = items_of(status);
  std::string line = join(items, colour);
  while (width > 0 && display_width(line) > width) {
    const auto last = std::max_element(items.begin(), items.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
    if (last->rank == 0) break;
    items.erase(last);
    line = join(items, colour);
  }
  return line;
}

}  // namespace witan
