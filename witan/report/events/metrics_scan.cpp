#include "witan/report/events/metrics_scan.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

#include "witan/base/error.h"

namespace witan {
namespace {

// Without a torn last line.
std::string_view whole_lines_of(std::string_view text) {
  return text.substr(0, text.rfind('\n') + 1);
}

// A line of a file, and where it stands for an error that is seldom needed.
struct Line {
  std::string_view text;
  const fs::path& path;
  size_t offset = 0;

  // Its event, of a kind that is known. Of a line that cannot be read nothing, and `damage` is set unless it has been.
  std::optional<Event> event(std::string& damage) const {
    try {
      return parse_event(text, cat(path.string(), ": byte ", offset));
    } catch (const CorruptionError& error) {
      if (damage.empty()) damage = error.what();
      return std::nullopt;
    }
  }
};

// The line whose newline is the last byte before `end`; the line before it ends at its offset.
Line line_that_ends_at(size_t end, std::string_view all, const fs::path& path) {
  const void* const feed = end > 1 ? ::memrchr(all.data(), '\n', end - 1) : nullptr;
  const size_t begin = feed ? static_cast<size_t>(static_cast<const char*>(feed) - all.data()) + 1 : 0;
  return {all.substr(begin, end - 1 - begin), path, begin};
}

// Sets the event of that kind, unless it is set, from a line that begins as such events do.
template <class E>
void take(std::optional<E>& event, const Line& line, std::string& damage) {
  if (event || kind_of(line.text) != kIndexOf<E>) return;
  if (auto parsed = line.event(damage)) event = std::get<E>(std::move(*parsed));
}

// Takes "WORDSnumber" from the front of the text; false where something else stands there.
template <class T>
bool take_number(std::string_view& text, std::string_view words, T& number) {
  if (!text.starts_with(words)) return false;
  const char* const begin = text.data() + words.size();
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  if (error != std::errc() || end == begin) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// {"kind":"step","step":7,"loss":2.5,...: both numbers, where the line is so written.
std::optional<Point> quick_loss(std::string_view line) {
  line.remove_prefix(line.find(',') + 1);
  int64_t step = 0;
  double loss = 0;
  if (!take_number(line, R"("step":)", step) || !take_number(line, R"(,"loss":)", loss)) return std::nullopt;
  if (!line.starts_with(',') && line != "}") return std::nullopt;
  return Point{static_cast<double>(step), loss};
}

// The step and loss of a line of kind E. A set of one's own is no validation split.
template <class E>
void take_loss(Curve& curve, const Line& line, std::string& damage) {
  std::optional<Point> point;
  if constexpr (std::is_same_v<E, StepEvent>) point = quick_loss(line.text);
  if (!point) {
    const auto event = line.event(damage);
    const E* const one = event ? std::get_if<E>(&*event) : nullptr;
    if (!one) return;
    if constexpr (std::is_same_v<E, EvalEvent>) {
      if (one->set) return;
    }
    point = Point{static_cast<double>(one->step), one->loss};
  }
  if (std::isfinite(point->y)) curve.push_back(*point);
}

}  // namespace

MetricsStanding read_standing(const fs::path& path) {
  const MappedFile file(path);
  const std::string_view all = whole_lines_of(file.text());
  MetricsStanding standing;
  for (size_t end = all.size(); end > 0 && all.size() - end < MetricsStanding::kTail;) {
    const Line line = line_that_ends_at(end, all, path);
    if (end == all.size()) take(standing.end, line, standing.damage);
    take(standing.run, line, standing.damage);
    take(standing.step, line, standing.damage);
    take(standing.eval, line, standing.damage);
    if (standing.eval && standing.eval->set) standing.eval.reset();
    if (standing.run && standing.step && standing.eval) break;
    end = line.offset;
  }
  if (!all.empty()) take(standing.run, Line{all.substr(0, all.find('\n')), path}, standing.damage);
  return standing;
}

std::optional<SaveEvent> read_last_save(const fs::path& path) {
  const MappedFile file(path);
  const std::string_view all = whole_lines_of(file.text());
  std::optional<SaveEvent> save;
  std::string passed_over;
  for (size_t end = all.size(); end > 0 && !save;) {
    const Line line = line_that_ends_at(end, all, path);
    take(save, line, passed_over);
    end = line.offset;
  }
  return save;
}

LossCurves read_losses(const fs::path& path) {
  const MappedFile file(path);
  const std::string_view all = whole_lines_of(file.text());
  LossCurves curves;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = all.find('\n', begin);
    const Line line{all.substr(begin, end - begin), path, begin};
    begin = end + 1;
    const auto kind = kind_of(line.text);
    if (kind == kIndexOf<StepEvent>)
      take_loss<StepEvent>(curves.training, line, curves.damage);
    else if (kind == kIndexOf<EvalEvent>)
      take_loss<EvalEvent>(curves.validation, line, curves.damage);
  }
  return curves;
}

}  // namespace witan
