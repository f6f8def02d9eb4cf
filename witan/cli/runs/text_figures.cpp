#include "witan/cli/runs/text_figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "witan/base/text.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {
namespace {

struct Range {
  double low = INFINITY, high = -INFINITY;
  void widen(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // The cell of `cells` in which the value lies.
  size_t cell(double value, size_t cells) const {
    const double share = high > low ? std::clamp((value - low) / (high - low), 0.0, 1.0) : 0;
    return static_cast<size_t>(std::lround(share * static_cast<double>(cells - 1)));
  }
};

// The highest 95th percentile of a curve, since the first values may be far above the rest.
Range values_of(const std::vector<LetteredCurve>& curves) {
  Range all;
  for (const LetteredCurve& one : curves) {
    std::vector<double> values;
    for (const Point& point : one.curve) values.push_back(point.y);
    if (values.empty()) continue;
    std::ranges::sort(values);
    all.widen(values.front());
    all.widen(values[(values.size() * 95 + 99) / 100 - 1]);
  }
  return all;
}

std::string step_text(double step) {
  return step < 100000 ? fmt::format("{:.0f}", step) : format_count(step);
}

}  // namespace

std::string text_curves(const std::vector<LetteredCurve>& curves, size_t width, size_t height) {
  Range steps;
  for (const LetteredCurve& one : curves)
    for (const Point& point : one.curve) steps.widen(point.x);
  if (!(steps.low <= steps.high)) return "";
  const Range values = values_of(curves);
  std::vector<std::string> rows(height, std::string(width, ' '));
  for (const LetteredCurve& one : curves)
    for (const Point& point : one.curve) {
      char& place = rows[height - 1 - values.cell(point.y, height)][steps.cell(point.x, width)];
      place = place == ' ' || place == one.letter ? one.letter : '*';
    }
  constexpr size_t kMargin = 9;
  std::string out;
  for (size_t i = 0; i < height; ++i) {
    const bool marked = i == 0 || i == height - 1 || i == height / 2;
    const double value = values.high - (values.high - values.low) * static_cast<double>(i) /
                                           static_cast<double>(std::max<size_t>(height - 1, 1));
    rows[i].erase(rows[i].find_last_not_of(' ') + 1);
    out += marked ? fmt::format("{:>{}.4g} |{}\n", value, kMargin, rows[i])
                  : fmt::format("{:>{}} |{}\n", "", kMargin, rows[i]);
  }
  const std::string first = step_text(steps.low), last = step_text(steps.high);
  out += fmt::format("{:>{}} +{}\n", "", kMargin, std::string(width, '-'));
  out += fmt::format("{:>{}}  {}{:>{}}\n", "step", kMargin, first, last,
                     width > first.size() ? width - first.size() : last.size() + 1);
  return out;
}

std::string text_table(const std::vector<std::vector<std::string>>& rows, const std::vector<Align>& aligned) {
  std::vector<int> widths;
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(static_cast<size_t>(widths[i] - display_width(row[i])), ' ');
      const bool right = i < aligned.size() && aligned[i] == Align::right;
      line += (i == 0 ? "" : "  ") + (right ? blanks + row[i] : row[i] + blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

}  // namespace witan::cli
