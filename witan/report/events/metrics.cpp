#include "witan/report/events/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/files/line_file.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr size_t kEventKinds = std::variant_size_v<Event>;

// Bytes up to and including the last line feed.
size_t whole_lines(std::string_view text) {
  return text.rfind('\n') + 1;
}

std::string place_of(const fs::path& path, int64_t line) {
  return cat(path.string(), ": line ", line);
}

std::string byte_of(const fs::path& path, uint64_t offset) {
  return cat(path.string(), ": byte ", offset);
}

// Calls take(line, offset, number) for every line that ends in a line feed, until it returns false.
template <class Take>
void for_each_line(std::string_view text, Take take) {
  text = text.substr(0, whole_lines(text));
  int64_t number = 1;
  for (size_t offset = 0; offset < text.size(); ++number) {
    const size_t end = text.find('\n', offset);
    if (!take(text.substr(offset, end - offset), offset, number)) return;
    offset = end + 1;
  }
}

std::optional<int64_t> step_of(const Event& event) {
  return std::visit(
      [](const auto& e) -> std::optional<int64_t> {
        if constexpr (requires { e.step; }) return e.step;
        return std::nullopt;
      },
      event);
}

// Whether the event comes after the last step of a run.
bool ends_run(const Event& event) {
  return std::holds_alternative<EndEvent>(event) || std::holds_alternative<MeasuredMemoryEvent>(event);
}

// Sorts events into a Metrics and checks the order of steps.
class Collector {
 public:
  Collector(Metrics& out, std::string_view where) : out_(out), where_(where) {}

  // Memory is planned anew where a run goes on in another layout.
  void operator()(RunEvent e) {
    if (out_.run && (out_.run->world_size != e.world_size || out_.run->layout != e.layout)) out_.memory.clear();
    out_.run = std::move(e);
  }
  void operator()(MemoryEvent e) { out_.memory.push_back(std::move(e)); }
  void operator()(MeasuredMemoryEvent e) { out_.measured_memory.push_back(std::move(e)); }
  void operator()(BaselineEvent e) { out_.baselines.push_back(std::move(e)); }
  void operator()(EndEvent e) { out_.end = std::move(e); }
  void operator()(ExpertsEvent e) { add(out_.experts, std::move(e), 0); }
  void operator()(LayersEvent e) { add(out_.layers, std::move(e), 0); }
  void operator()(ActivationsEvent e) { add(out_.activations, std::move(e), 0); }
  void operator()(GpusEvent e) { add(out_.gpus, std::move(e), 0); }
  void operator()(EvalEvent e) {
    auto& events = e.set ? out_.set_evals[*e.set] : out_.evals;
    add(events, std::move(e), 0);
  }
  void operator()(SaveEvent e) { add(out_.saves, std::move(e), 0); }
  void operator()(SampleEvent e) { add(out_.samples, std::move(e), 0); }
  void operator()(AnomalyEvent e) { add(out_.anomalies, std::move(e), 0); }
  void operator()(ResumeEvent e) { add(out_.resumes, std::move(e), 0); }
  void operator()(StepEvent e) { add(out_.steps, std::move(e), 1); }

 private:
  template <class E>
  void add(std::vector<E>& events, E event, int64_t least_gap) {
    if (!events.empty()) {
      const int64_t last = events.back().step;
      require<CorruptionError>(event.step - last >= least_gap, where_, ": step ", event.step, " comes after step ",
                               last);
    }
    events.push_back(std::move(event));
  }

  Metrics& out_;
  std::string_view where_;
};

}  // namespace

MetricsWriter::MetricsWriter(const fs::path& path) : file_(path) {
  const size_t whole = whole_lines(MappedFile(path).text());
  if (whole < file_.size()) file_.cut(whole);
}

void MetricsWriter::append(const Event& event) {
  file_.append(format_event(event) + '\n');
}

namespace {

// Finds where to start searching for events after `step`: at the last line of that step, or of an earlier one.
// Everything before such a line was written earlier, so that it belongs to no later step. Lines after it may belong to
// earlier steps: a save is recorded when it is complete, some steps later.
uint64_t last_step_line(const fs::path& path, int64_t step) {
  for (LinesBackward lines(path); lines.next();) {
    if (kind_of(lines.line()) != kIndexOf<StepEvent>) continue;
    if (const auto of = quick_step(lines.line()); of && *of <= step) return lines.offset();
  }
  return 0;
}

}  // namespace

uint64_t bytes_until(const fs::path& path, int64_t step) {
  bool reached = false;
  for (LinesForward lines(path, last_step_line(path, step)); lines.next();) {
    const bool lost = reached && lines.line().find('\0') != std::string_view::npos;
    if (lost) return lines.offset();
    const std::optional<Event> event = parse_event(lines.line(), byte_of(path, lines.offset()));
    const int64_t of_step = event ? step_of(*event).value_or(0) : 0;
    if (event && (ends_run(*event) || of_step > step)) return lines.offset();
    reached |= of_step == step;
  }
  return fs::file_size(path);
}

void MetricsWriter::truncate_after(int64_t step) {
  const uint64_t keep = bytes_until(file_.path(), step);
  if (keep < file_.size()) file_.cut(keep);
}

void add_event(Metrics& metrics, Event event, std::string_view where) {
  std::visit(Collector(metrics, where), std::move(event));
}

Metrics read_metrics(const fs::path& path) {
  return read_thinned_metrics(path, INT64_MAX);
}

Metrics read_thinned_metrics(const fs::path& path, int64_t most) {
  const MappedFile file(path);
  // Lines that another program wrote differently are all kept.
  int64_t lines[kEventKinds] = {}, seen[kEventKinds] = {};
  if (most < INT64_MAX)
    for_each_line(file.text(), [&](std::string_view line, size_t, int64_t) {
      if (const auto kind = kind_of(line)) ++lines[*kind];
      return true;
    });
  // After the first lines of a kind, one in every `stride` lines is kept, counted from the last.
  const auto is_left_out = [&](std::string_view line) {
    const auto kind = kind_of(line);
    if (!kind || !is_frequent(*kind)) return false;
    const int64_t head = most / kHeadShare, all = lines[*kind], number = ++seen[*kind];
    if (all <= most || number <= head) return false;
    const int64_t stride = (all - head + most - head - 1) / (most - head);
    return (all - number) % stride != 0;
  };
  Metrics metrics;
  for_each_line(file.text(), [&](std::string_view line, size_t, int64_t number) {
    if (is_left_out(line)) return true;
    const std::string where = place_of(path, number);
    if (std::optional<Event> event = parse_event(line, where)) add_event(metrics, std::move(*event), where);
    return true;
  });
  return metrics;
}

std::string describe(const DamagedLines& damaged, const fs::path& path) {
  return cat(damaged.count, " of the ", counted(damaged.of, "line"), " of ", path.string(),
             " cannot be read and are left out; the first: ", damaged.first);
}

Metrics read_undamaged_metrics(const fs::path& path, DamagedLines& damaged) {
  Metrics metrics;
  damaged = {};
  for (LinesForward lines(path); lines.next();) {
    const std::string where = place_of(path, ++damaged.of);
    try {
      if (auto event = parse_event(lines.line(), where)) add_event(metrics, std::move(*event), where);
    } catch (const CorruptionError& error) {
      if (damaged.count++ == 0) damaged.first = error.what();
    }
  }
  return metrics;
}

namespace {

// The order of steps that Collector asks for, of events that are not kept.
class StepOrder {
 public:
  // Throws CorruptionError("WHERE(): why") where the event comes too early.
  template <class Where>
  void take(const Event& event, Where where) {
    const auto* const eval = std::get_if<EvalEvent>(&event);
    if (const auto step = step_of(event))
      take(eval && eval->set ? sets_[*eval->set] : last_[event.index()], *step, least_gap(event.index()), where);
  }
  // Takes a line of which only kind and step are known, and which is no evaluation.
  template <class Where>
  void take(size_t kind, int64_t step, Where where) {
    take(last_[kind], step, least_gap(kind), where);
  }

 private:
  using Last = std::optional<int64_t>;

  static int64_t least_gap(size_t kind) { return kind == kIndexOf<StepEvent> ? 1 : 0; }

  template <class Where>
  static void take(Last& last, int64_t step, int64_t least_gap, Where where) {
    if (last && step - *last < least_gap)
      throw CorruptionError(cat(where(), ": step ", step, " comes after step ", *last));
    last = step;
  }

  Last last_[kEventKinds];
  std::map<std::string, Last> sets_;
};

// Whether a byte is below ' ', eight at a time: such a byte borrows into its highest bit, which was not set.
bool has_control_bytes(std::string_view text) {
  constexpr uint64_t kSpaces = 0x2020202020202020, kHighest = 0x8080808080808080;
  uint64_t found = 0;
  for (; text.size() >= sizeof(uint64_t); text.remove_prefix(sizeof(uint64_t))) {
    uint64_t word;
    std::memcpy(&word, text.data(), sizeof word);
    found |= (word - kSpaces) & ~word & kHighest;
  }
  return found != 0 ||
         std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; });
}

// Whether the line is whole: it has no bytes that format_event() never writes, such as zeros in place of lost data, its
// end is not missing, and no other line is joined to its beginning.
bool is_whole_object(std::string_view line) {
  return line.ends_with('}') && line.find(R"({"kind":)", 1) == std::string_view::npos && !has_control_bytes(line);
}

}  // namespace

void check_metrics(const fs::path& path, uint64_t end) {
  StepOrder order;
  for (LinesForward lines(path); lines.next() && lines.offset() < end;) {
    const std::string_view line = lines.line();
    const auto kind = kind_of(line);
    const auto step = kind && is_frequent(*kind) && is_whole_object(line) ? quick_step(line) : std::nullopt;
    const auto where = [&] { return byte_of(path, lines.offset()); };
    if (step)
      order.take(*kind, *step, where);
    else if (const std::optional<Event> event = parse_event(line, where()))
      order.take(*event, where);
  }
}

std::optional<RunEvent> last_run_event(const fs::path& path) {
  std::optional<RunEvent> run;
  for (LinesForward lines(path); lines.next();)
    if (kind_of(lines.line()) == kIndexOf<RunEvent>)
      if (auto event = parse_event(lines.line(), byte_of(path, lines.offset())))
        run = std::get<RunEvent>(std::move(*event));
  return run;
}

namespace {

// Gives the file another name too, or a copy where a file has no more than one. It is there under its own all the time.
void keep_as(const fs::path& path, const fs::path& other) {
  fs::remove(other);
  std::error_code no_links;
  fs::create_hard_link(path, other, no_links);
  if (no_links) fs::copy_file(path, other);
}

}  // namespace

DamagedLines repair_metrics(const fs::path& path, int64_t step) {
  DamagedLines damaged;
  AtomicFile repaired(path);
  StepOrder order;
  for (LinesForward lines(path); lines.next();) {
    const std::string where = place_of(path, ++damaged.of);
    try {
      const std::optional<Event> event = parse_event(lines.line(), where);
      if (event && step_of(*event).value_or(0) > step) continue;  // or those after it would come too early
      if (event) order.take(*event, [&] { return where; });
      repaired.write(lines.line());
      repaired.write("\n");
    } catch (const CorruptionError& error) {
      if (damaged.count++ == 0) damaged.first = error.what();
    }
  }
  keep_as(path, path.string() + ".damaged");
  repaired.commit();
  MetricsWriter(path).truncate_after(step);
  return damaged;
}

namespace {

// The text without a torn last line.
std::string_view whole_lines_of(std::string_view text) {
  return text.substr(0, text.rfind('\n') + 1);
}

// A line of a file, and where it stands for an error that is seldom needed.
struct Line {
  std::string_view text;
  const fs::path& path;
  size_t offset = 0;

  // The event of the line, whose kind is known. Nothing for a line that cannot be read, which sets `damage` unless it
  // is set already.
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
