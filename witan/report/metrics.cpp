#include "witan/report/metrics.h"

#include "witan/base/counted.h"
#include "witan/base/error.h"

namespace witan {
namespace {

// Bytes up to and including the last line feed.
size_t whole_lines(std::string_view text) {
  return text.rfind('\n') + 1;
}

std::string place_of(const fs::path& path, int64_t line) {
  return cat(path.string(), ": line ", line);
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

// What stands behind the last step of a run.
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

void MetricsWriter::truncate_after(int64_t step) {
  uint64_t keep = file_.size();
  bool reached = false;
  {
    const MappedFile file(file_.path());
    for_each_line(file.text(), [&](std::string_view line, size_t offset, int64_t number) {
      const bool lost = reached && line.find('\0') != std::string_view::npos;
      std::optional<Event> event;
      if (!lost) event = parse_event(line, place_of(file_.path(), number));
      const int64_t of_step = event ? step_of(*event).value_or(0) : 0;
      const bool kept = !lost && (!event || (!ends_run(*event) && of_step <= step));
      reached |= of_step == step;
      if (!kept) keep = offset;
      return kept;
    });
  }
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
  // As format_event() begins them. Of a line that another program wrote in another way none is left out.
  static constexpr std::string_view kThinned[] = {R"({"kind":"step",)", R"({"kind":"experts",)", R"({"kind":"layers",)",
                                                  R"({"kind":"activations",)", R"({"kind":"gpus",)"};
  static constexpr size_t kKinds = std::size(kThinned);
  const auto kind_of = [](std::string_view line) {
    size_t kind = 0;
    while (kind < kKinds && !line.starts_with(kThinned[kind])) ++kind;
    return kind;
  };
  int64_t lines[kKinds + 1] = {}, seen[kKinds + 1] = {};
  if (most < INT64_MAX)
    for_each_line(file.text(), [&](std::string_view line, size_t, int64_t) {
      ++lines[kind_of(line)];
      return true;
    });
  // Behind the first lines of its kind one in every `stride` is kept, counted from the last.
  const auto is_left_out = [&](std::string_view line) {
    const size_t kind = kind_of(line);
    const int64_t head = most / kHeadShare, number = ++seen[kind];
    if (kind == kKinds || lines[kind] <= most || number <= head) return false;
    const int64_t stride = (lines[kind] - head + most - head - 1) / (most - head);
    return (lines[kind] - number) % stride != 0;
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

namespace {

// Calls take(line) for each line that can be read, and returns their events.
template <class Take>
Metrics read_undamaged_lines(const fs::path& path, int64_t last_step, DamagedLines& damaged, Take take) {
  const MappedFile file(path);
  Metrics metrics;
  damaged = {};
  for_each_line(file.text(), [&](std::string_view line, size_t, int64_t number) {
    damaged.of = number;
    const std::string where = place_of(path, number);
    try {
      std::optional<Event> event = parse_event(line, where);
      if (event && step_of(*event).value_or(0) > last_step) return true;  // or those behind it would come too early
      if (event) add_event(metrics, std::move(*event), where);
      take(line);
    } catch (const CorruptionError& error) {
      if (damaged.count++ == 0) damaged.first = error.what();
    }
    return true;
  });
  return metrics;
}

}  // namespace

std::string describe(const DamagedLines& damaged, const fs::path& path) {
  return cat(damaged.count, " of the ", counted(damaged.of, "line"), " of ", path.string(),
             " cannot be read and are left out; the first: ", damaged.first);
}

Metrics read_undamaged_metrics(const fs::path& path, DamagedLines& damaged) {
  return read_undamaged_lines(path, INT64_MAX, damaged, [](std::string_view) {});
}

DamagedLines repair_metrics(const fs::path& path, int64_t step) {
  DamagedLines damaged;
  std::string text;
  read_undamaged_lines(path, step, damaged, [&](std::string_view line) { (text += line) += '\n'; });
  fs::rename(path, path.string() + ".damaged");
  write_file_atomically(path, text);
  MetricsWriter(path).truncate_after(step);
  return damaged;
}

}  // namespace witan
