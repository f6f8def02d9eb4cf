#include "witan/report/page/charts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "witan/report/events/figures.h"

namespace witan {
namespace {

using Section = Chart::Section;
using Style = Series::Style;
using OrderedJson = nlohmann::ordered_json;

// The events' finite values over their steps; get returns double or optional<double>.
template <class E, class Get>
Curve curve_of(const std::vector<E>& events, Get get) {
  Curve curve;
  for (const E& event : events) {
    const std::optional<double> value = get(event);
    if (value && std::isfinite(*value)) curve.push_back({static_cast<double>(event.step), *value});
  }
  return curve;
}

// Why a GPU's clocks were lowered, in NVML's bits.
struct ThrottleReason {
  const char* name;
  int64_t bits;
};
constexpr ThrottleReason kThrottleReasons[] = {
    {"power cap", 0x4}, {"temperature", 0x20 | 0x40}, {"power brake", 0x80}, {"hardware slowdown", 0x8}};

// First and last step of the x axis; a step of its own stands in the middle.
std::pair<int64_t, int64_t> step_range(const Metrics& m) {
  int64_t first = INT64_MAX, last = 0;
  const auto widen = [&](const auto& events) {
    if (events.empty()) return;
    first = std::min(first, events.front().step);
    last = std::max(last, events.back().step);
  };
  widen(m.steps);
  widen(m.evals);
  widen(m.experts);
  if (first < last) return {first, last};
  return {std::max<int64_t>(last, 1) - 1, std::min(last, INT64_MAX - 1) + 1};
}

// Collects charts, leaving out series and charts without data.
class Charts {
 public:
  explicit Charts(std::vector<Chart>& out) : out_(out) {}

  void open(Section section, std::string title, std::string unit, bool zero = false) {
    close();
    chart_ = {section, std::move(title), std::move(unit), {}, zero};
  }
  void add(std::string name, Style style, int colour, const Curve& curve) {
    if (!curve.empty()) chart_.series.push_back({std::move(name), style, colour, downsample(curve, kMostPoints)});
  }
  // The curve itself, faint, behind its moving average.
  void add_smoothed(const std::string& name, int colour, const Curve& curve) {
    const double span = smoothing_span(curve.size());
    if (span <= 1) return add(name, Style::line, colour, curve);
    add(name, Style::faint, colour, curve);
    add("smoothed", Style::line, colour, smooth(curve, span));
  }
  // Adds only the moving average of a curve that stands beside a smoothed one, since two faint curves would be too
  // many. An unsmoothed curve is `raw`.
  void add_average(const std::string& name, int colour, const Curve& curve) {
    const double span = smoothing_span(curve.size());
    add(name, Style::line, colour, span > 1 ? smooth(curve, span) : curve);
    if (span > 1) chart_.series.back().raw = downsample(curve, kMostPoints);
  }
  void close() {
    if (!chart_.series.empty()) out_.push_back(std::move(chart_));
    chart_ = {};
  }

 private:
  std::vector<Chart>& out_;
  Chart chart_;
};

// "router_entropy" -> "Router entropy"
std::string title_of(std::string name) {
  std::ranges::replace(name, '_', ' ');
  if (!name.empty()) name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

// Charts of the scalars that are declared to have one, and of those that the file alone knows.
void add_scalars(Charts& charts, const Metrics& m) {
  std::map<std::pair<int, std::string>, StepScalar::Curve> shown;  // by place and key
  std::map<std::string, std::string> titles;                       // of those of the file
  for (const StepEvent& event : m.steps)
    for (const StepScalars::Entry& entry : event.scalars.all())
      if (!entry.declared)
        titles.emplace(entry.key, title_of(entry.key));
      else if (const auto& chart = entry.declared->chart)
        shown.emplace(std::pair(chart->place, entry.key), *chart);
  for (const auto& [key, title] : titles)
    shown.emplace(std::pair(StepScalar::kLast, key), StepScalar::Curve{title.c_str(), "", "value", 1});
  std::string_view open;
  for (const auto& [place, chart] : shown) {
    if (open != chart.title) charts.open(Section::learning, chart.title, chart.unit, chart.zero);
    open = chart.title;
    charts.add(chart.series, Style::line, chart.colour,
               curve_of(m.steps, [&, &key = place.second, &log2 = chart.log2](const StepEvent& e) {
                 const std::optional<double> value = e.scalars.get(key);
                 return value && log2 ? std::optional(std::log2(*value)) : value;
               }));
  }
}

void add_learning(Charts& charts, const Metrics& m) {
  const auto [first, last] = step_range(m);
  charts.open(Section::learning, "Loss", unit_of_loss(m));
  charts.add_smoothed("training", 1, curve_of(m.steps, [](const StepEvent& e) { return e.loss; }));
  charts.add("validation", Style::dots, 2, curve_of(m.evals, [](const EvalEvent& e) { return e.loss; }));
  int colour = 2;
  for (const auto& [name, evals] : m.set_evals)
    charts.add(name, Style::dots, colour++ % 4 + 1, curve_of(evals, [](const EvalEvent& e) { return e.loss; }));

  size_t modules = 0;
  for (const StepEvent& step : m.steps) modules = std::max(modules, step.mtp_losses.size());
  charts.open(Section::learning, "Multi-token prediction", "nats per token, of each module");
  for (size_t module = 0; module < modules; ++module)
    charts.add(fmt::format("module {}", module + 1), Style::line, static_cast<int>(module % 4) + 1,
               curve_of(m.steps, [&](const StepEvent& e) -> std::optional<double> {
                 if (module >= e.mtp_losses.size()) return std::nullopt;
                 return e.mtp_losses[module];
               }));

  const auto bits_of = [](const EvalEvent& e) -> std::optional<double> {
    return e.figures.empty() ? std::optional(e.bits_per_byte) : std::nullopt;  // preferences have none
  };
  const Curve bits = curve_of(m.evals, bits_of);
  charts.open(Section::learning, "Validation", "bits per byte");
  charts.add("this model", Style::dots, 2, bits);
  colour = 2;
  for (const auto& [name, evals] : m.set_evals)
    charts.add(name, Style::dots, colour++ % 4 + 1, curve_of(evals, bits_of));
  for (const BaselineEvent& b : m.baselines) {
    if (!bits.empty() && std::isfinite(b.bits_per_byte))
      charts.add(b.name, Style::dashed, 3,
                 {{static_cast<double>(first), b.bits_per_byte}, {static_cast<double>(last), b.bits_per_byte}});
  }

  charts.open(Section::learning, "Eval reward", "of answers to held-out prompts, mean");
  charts.add("reward", Style::dots, 2, curve_of(m.evals, [](const EvalEvent& e) { return e.reward; }));

  charts.open(Section::learning, "Gradient norm", "before clipping");
  charts.add_smoothed("norm", 1, curve_of(m.steps, [](const StepEvent& e) { return e.grad_norm; }));

  charts.open(Section::learning, "Learning rate", "", true);
  charts.add("rate", Style::line, 4, curve_of(m.steps, [](const StepEvent& e) { return e.lr; }));
  add_scalars(charts, m);
}

// The largest of the finite values.
std::optional<double> largest(const std::vector<double>& values) {
  std::optional<double> most;
  for (const double value : values)
    if (std::isfinite(value) && (!most || value > *most)) most = value;
  return most;
}

// A series for each of an event's values(event), a vector; of too many for some, evenly spread and with the first and
// the last one, and for the largest of all. `what`: one of them.
template <class E, class Values>
void add_each(Charts& charts, const std::vector<E>& events, std::string_view what, Values values) {
  size_t count = 0;
  for (const E& event : events) count = std::max(count, values(event).size());
  const size_t shown = count <= kSeriesColours ? count : kSeriesColours - 1;
  for (size_t i = 0; i < shown; ++i) {
    const size_t which = shown == count ? i : i * (count - 1) / (shown - 1);
    charts.add(fmt::format("{} {}", what, which), Style::line, static_cast<int>(i) + 1,
               curve_of(events, [&](const E& event) -> std::optional<double> {
                 const auto& all = values(event);
                 if (which >= all.size()) return std::nullopt;
                 return all[which];
               }));
  }
  if (shown < count)
    charts.add(fmt::format("largest of {} {}s", count, what), Style::line, static_cast<int>(kSeriesColours),
               curve_of(events, [&](const E& event) { return largest(values(event)); }));
}

void add_layers(Charts& charts, const Metrics& m) {
  charts.open(Section::layers, "Gradient norm by layer", "before clipping");
  add_each(charts, m.layers, "layer", [](const LayersEvent& e) -> const std::vector<double>& { return e.grad_norms; });
  charts.open(Section::layers, "Gradient norm beside the layers", "before clipping");
  charts.add("embedding", Style::line, 1,
             curve_of(m.layers, [](const LayersEvent& e) { return e.embedding_grad_norm; }));
  charts.add("head", Style::line, 2, curve_of(m.layers, [](const LayersEvent& e) { return e.head_grad_norm; }));
}

// A chart of each statistic that a line has, but for zeros where there are none.
void add_activations(Charts& charts, const Metrics& m) {
  struct Words {
    std::string name, title, unit;
  };
  std::vector<Words> shown = {
      {"residual_rms", "Residual stream, RMS", "after each layer"},
      {"residual_max", "Residual stream, largest", "magnitude after each layer"},
      {"attention_rms", "Attention output, RMS", "before it is added to the residual stream"},
      {"attention_max", "Attention output, largest", "magnitude before it is added"},
      {"mlp_rms", "MLP output, RMS", "or the experts', before it is added"},
      {"mlp_max", "MLP output, largest", "magnitude before it is added"},
      {"attention_logit_max", "Largest attention logit by layer", "over its heads, before QK-clip"},
      {"mlp_zeros", "MLP output, zeros", "share of its elements"},
  };
  std::set<std::string> names;
  bool zeros = false;
  for (const ActivationsEvent& event : m.activations)
    for (const auto& [name, layers] : event.statistics) {
      if (names.insert(name).second && std::ranges::find(shown, name, &Words::name) == shown.end())
        shown.push_back({name, title_of(name), ""});
      zeros = zeros || (name == "mlp_zeros" && std::ranges::any_of(layers, [](double share) { return share > 0; }));
    }
  for (const Words& words : shown) {
    if (words.name == "mlp_zeros" && !zeros) continue;
    charts.open(Section::activations, words.title, words.unit);
    add_each(charts, m.activations, "layer", [&](const ActivationsEvent& e) -> const std::vector<double>& {
      static const std::vector<double> kNone;
      const auto layers = e.statistics.find(words.name);
      return layers == e.statistics.end() ? kNone : layers->second;
    });
  }
}

enum class Extreme : uint8_t { lowest, highest };

// The lowest or highest value of a statistic that routers record of each layer.
Curve curve_of_layers(const Metrics& m, const std::string& name, Extreme which) {
  return curve_of(m.experts, [&](const ExpertsEvent& e) -> std::optional<double> {
    std::optional<double> found;
    const auto statistic = e.statistics.find(name);
    if (statistic == e.statistics.end()) return found;
    for (const std::vector<double>& row : statistic->second)
      for (const double value : row) {
        const bool beyond = found && (which == Extreme::lowest ? value >= *found : value <= *found);
        if (!beyond) found = value;
      }
    return found;
  });
}

// Whether several layers have this value. A single layer would be the lowest and the highest as well.
bool has_several(const Metrics& m, const std::string& name) {
  return std::ranges::any_of(m.experts, [&](const ExpertsEvent& e) {
    const auto statistic = e.statistics.find(name);
    if (statistic == e.statistics.end()) return false;
    size_t values = 0;
    for (const std::vector<double>& row : statistic->second) values += row.size();
    return values > 1;
  });
}

void add_validation_of_routers(Charts& charts, const Metrics& m, const std::string& name) {
  charts.add("validation", Style::dots, 2, curve_of(m.evals, [&](const EvalEvent& e) -> std::optional<double> {
               const auto value = e.router.find(name);
               if (value == e.router.end()) return std::nullopt;
               return value->second;
             }));
}

// A chart of each statistic that has none of its own: over all layers, and of the two layers that differ most.
void add_other_statistics(Charts& charts, const Metrics& m) {
  const std::map<std::string, std::string> units = {{"router_entropy", "nats, mean over tokens"}};
  std::set<std::string> names;
  for (const StepEvent& event : m.steps)
    for (const auto& [name, value] : event.router) names.insert(name);
  for (const std::string& name : names) {
    const auto unit = units.find(name);
    charts.open(Section::experts, title_of(name), unit == units.end() ? "" : unit->second);
    charts.add_smoothed("all layers", 1,
                        curve_of(m.steps, [&](const StepEvent& e) { return router_statistic(e, name); }));
    add_validation_of_routers(charts, m, name);
    if (!has_several(m, name)) continue;
    charts.add_average("lowest layer", 3, curve_of_layers(m, name, Extreme::lowest));
    charts.add_average("highest layer", 4, curve_of_layers(m, name, Extreme::highest));
  }
}

void add_experts(Charts& charts, const Metrics& m) {
  charts.open(Section::experts, "Busiest expert", "times the mean load, worst layer");
  charts.add_smoothed("max / mean", 2, curve_of(m.steps, [](const StepEvent& e) { return e.load_max_over_mean; }));
  if (has_several(m, "load_max_over_mean"))
    charts.add_average("most even layer", 4, curve_of_layers(m, "load_max_over_mean", Extreme::lowest));
  add_validation_of_routers(charts, m, "load_max_over_mean");

  charts.open(Section::experts, "Dropped", "share of assignments beyond their expert's capacity");
  charts.add("dropped", Style::line, 3, curve_of(m.steps, [](const StepEvent& e) { return e.dropped_share; }));
  add_validation_of_routers(charts, m, "dropped_share");

  // Each has a scale of its own.
  charts.open(Section::experts, "Router losses", "load balancing");
  charts.add("load balancing", Style::line, 1,
             curve_of(m.steps, [](const StepEvent& e) { return e.load_balancing_loss; }));
  add_validation_of_routers(charts, m, "load_balancing_loss");
  charts.open(Section::experts, "Router z-loss", "");
  charts.add("z", Style::line, 4, curve_of(m.steps, [](const StepEvent& e) { return e.z_loss; }));
  add_validation_of_routers(charts, m, "z_loss");
  add_other_statistics(charts, m);
}

void add_speed(Charts& charts, const Metrics& m) {
  charts.open(Section::speed, "Throughput", "tokens per second", true);
  charts.add_smoothed("tokens/s", 1, curve_of(m.steps, [](const StepEvent& e) { return e.tokens_per_s; }));

  charts.open(Section::speed, "Arithmetic", "GFLOP/s", true);
  charts.add_smoothed("GFLOP/s", 4, curve_of(m.steps, [](const StepEvent& e) { return e.gflops; }));

  if (m.run && m.run->ceiling_gflops > 0) {
    charts.open(Section::speed, "Share of the machine's ceiling", "%", true);
    charts.add_smoothed("share", 4,
                        curve_of(m.steps, [](const StepEvent& e) { return std::min(100 * e.ceiling_share, 100.0); }));
  }
  charts.open(Section::speed, "Time per step", "milliseconds", true);
  charts.add("step", Style::line, 1, curve_of(m.steps, [](const StepEvent& e) { return 1000 * e.step_s; }));
  charts.add("of which waiting for data", Style::line, 2,
             curve_of(m.steps, [](const StepEvent& e) { return 1000 * e.data_wait_s; }));

  charts.open(Section::speed, "Parts of a step", "milliseconds, on rank 0", true);
  const auto part = [&](const char* name, int colour, std::optional<double> StepEvent::*seconds) {
    charts.add(name, Style::line, colour, curve_of(m.steps, [=](const StepEvent& e) -> std::optional<double> {
                 if (!(e.*seconds)) return std::nullopt;
                 return 1000 * *(e.*seconds);
               }));
  };
  part("forward", 1, &StepEvent::forward_s);
  part("backward", 2, &StepEvent::backward_s);
  part("reduction of gradients", 3, &StepEvent::reduction_s);
  part("optimizer", 4, &StepEvent::optimizer_s);

  charts.open(Section::speed, "Data read", "epochs", true);
  charts.add("of the data read most", Style::line, 3, curve_of(m.steps, [](const StepEvent& e) { return e.epochs; }));
}

bool same_shape(const ExpertsEvent& a, const ExpertsEvent& b) {
  return a.layers == b.layers && std::equal(a.load.begin(), a.load.end(), b.load.begin(), b.load.end(),
                                            [](const auto& x, const auto& y) { return x.size() == y.size(); });
}

// Mean load over events [begin, end) of one layer, as a column of the heat map.
std::vector<int> mean_column(const std::vector<const ExpertsEvent*>& events, size_t begin, size_t end, size_t layer) {
  const size_t experts = events[begin]->load[layer].size();
  std::vector<int> column(experts);
  for (size_t expert = 0; expert < experts; ++expert) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) {
      const double share = events[i]->load[layer][expert];
      if (share > 0 && share <= 1) sum += share;
    }
    column[expert] =
        static_cast<int>(std::lround(1000 * sum * static_cast<double>(experts) / static_cast<double>(end - begin)));
  }
  return column;
}

// Six significant digits are more than a screen shows, and keep the file small.
double rounded(double value) {
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

OrderedJson to_json(const Curve& curve) {
  OrderedJson points = OrderedJson::array();
  for (const Point& p : curve) points.push_back({static_cast<int64_t>(p.x), rounded(p.y)});
  return points;
}

OrderedJson to_json(const Series& series) {
  constexpr const char* kStyles[] = {"faint", "line", "dots", "dashed"};
  OrderedJson json{{"name", series.name},
                   {"style", kStyles[static_cast<int>(series.style)]},
                   {"colour", series.colour},
                   {"points", to_json(series.points)}};
  if (!series.raw.empty()) json["raw"] = to_json(series.raw);
  if (series.run != 0) json["run"] = series.run;
  if (series.dash != 0) json["dash"] = series.dash;
  return json;
}

OrderedJson charts_data(int64_t first, int64_t last, const std::vector<RunAxis>& runs,
                        const std::vector<Chart>& charts) {
  OrderedJson data{{"steps", {first, last}}, {"runs", OrderedJson::array()}, {"charts", OrderedJson::array()}};
  for (const RunAxis& run : runs) {
    data["runs"].push_back(
        {{"steps", {run.first, run.last}}, {"tokens_per_step", run.tokens_per_step}, {"clock", to_json(run.clock)}});
    for (const Mark& mark : run.marks)
      data["runs"].back()["marks"].push_back({{"step", mark.step}, {"text", mark.text}});
  }
  for (const Chart& chart : charts) {
    OrderedJson series = OrderedJson::array();
    for (const Series& s : chart.series) series.push_back(to_json(s));
    data["charts"].push_back(
        {{"title", chart.title}, {"unit", chart.unit}, {"zero", chart.zero}, {"series", std::move(series)}});
  }
  return data;
}

// A curve behind its moving average, and lines that are no run's, would hide others. The first of what is left has the
// run's own name.
std::vector<Series> series_of_run(const Chart& chart, const std::string& name, int colour, int run) {
  std::vector<Series> shown;
  Curve raw;
  for (const Series& series : chart.series) {
    if (series.style == Style::faint) raw = series.points;
    if (series.style == Style::faint || series.style == Style::dashed) continue;
    const Curve behind = std::exchange(raw, {});
    shown.push_back({shown.empty() ? name : name + " " + series.name, series.style, colour, series.points,
                     behind.empty() ? series.raw : behind, run, static_cast<int>(shown.size())});
  }
  return shown;
}

void add_gpus(Charts& charts, const Metrics& m) {
  charts.open(Section::gpus, "GPU temperature", "°C");
  add_each(charts, m.gpus, "GPU", [](const GpusEvent& e) -> const std::vector<double>& { return e.temperature; });
  charts.open(Section::gpus, "GPU power", "watts", true);
  add_each(charts, m.gpus, "GPU", [](const GpusEvent& e) -> const std::vector<double>& { return e.power; });
  charts.open(Section::gpus, "GPU memory", "bytes in use, by all processes", true);
  add_each(charts, m.gpus, "GPU", [](const GpusEvent& e) -> const std::vector<double>& { return e.memory_used; });

  charts.open(Section::gpus, "Lowered clocks", "number of GPUs, by reason", true);
  int colour = 1;
  for (const ThrottleReason& reason : kThrottleReasons) {
    const Curve gpus = curve_of(m.gpus, [&](const GpusEvent& e) {
      return static_cast<double>(
          std::ranges::count_if(e.throttle_reasons, [&](int64_t bits) { return (bits & reason.bits) != 0; }));
    });
    if (std::ranges::any_of(gpus, [](const Point& point) { return point.y > 0; }))
      charts.add(reason.name, Style::line, colour, gpus);
    ++colour;
  }
}

}  // namespace

std::vector<Chart> make_charts(const Metrics& metrics) {
  std::vector<Chart> out;
  Charts charts(out);
  add_learning(charts, metrics);
  add_layers(charts, metrics);
  add_activations(charts, metrics);
  add_experts(charts, metrics);
  add_speed(charts, metrics);
  add_gpus(charts, metrics);
  charts.close();
  return out;
}

std::optional<HeatMap> make_heat_map(const std::vector<ExpertsEvent>& events) {
  std::vector<const ExpertsEvent*> used;
  size_t cells = 0;  // of one column
  if (!events.empty())
    for (const auto& row : events.back().load) cells += row.size();
  if (cells == 0) return std::nullopt;
  for (const ExpertsEvent& event : events)
    if (same_shape(event, events.back())) used.push_back(&event);

  constexpr size_t kMostColumns = 400, kLeastColumns = 40, kMostCells = 400'000;
  const size_t length = stretch_length(used.size(), std::clamp(kMostCells / cells, kLeastColumns, kMostColumns));
  HeatMap heat;
  for (size_t layer = 0; layer < used[0]->load.size(); ++layer) {
    const int64_t number = used[0]->layers.empty() ? static_cast<int64_t>(layer) : used[0]->layers[layer];
    heat.panels.push_back({number, static_cast<int64_t>(used[0]->load[layer].size()), {}});
  }
  for (size_t begin = 0; begin < used.size(); begin += length) {
    const size_t end = std::min(begin + length, used.size());
    heat.steps.push_back(used[end - 1]->step);
    for (size_t layer = 0; layer < heat.panels.size(); ++layer)
      heat.panels[layer].load.push_back(mean_column(used, begin, end, layer));
  }
  return heat;
}

std::vector<Chart> merge_charts(const std::vector<std::vector<Chart>>& charts, const std::vector<std::string>& names) {
  std::vector<Chart> merged;
  for (size_t run = 0; run < charts.size(); ++run)
    for (const Chart& chart : charts[run]) {
      if (chart.section == Section::layers || chart.section == Section::activations || chart.section == Section::gpus)
        continue;
      const auto shown =
          series_of_run(chart, names[run], static_cast<int>(run % kSeriesColours) + 1, static_cast<int>(run));
      auto same = std::ranges::find(merged, chart.title, &Chart::title);
      if (same == merged.end())
        same = merged.insert(merged.end(), {chart.section, chart.title, chart.unit, {}, chart.zero});
      same->series.insert(same->series.end(), shown.begin(), shown.end());
    }
  return merged;
}

namespace {

// "2025-01-02T03:04:05Z" -> "2025-01-02 03:04:05 UTC"
std::string readable(std::string time) {
  if (time.size() != 20 || time[10] != 'T' || time.back() != 'Z') return time;
  time[10] = ' ';
  time.back() = ' ';
  return time + "UTC";
}

std::vector<Mark> make_marks(const Metrics& m) {
  std::vector<Mark> marks;
  for (const ResumeEvent& e : m.resumes)
    marks.push_back({e.step, fmt::format("resumed from step {}, {}", e.step, readable(e.time))});
  for (const AnomalyEvent& e : m.anomalies)
    if (e.at) marks.push_back({e.step, fmt::format("back from step {} to step {}: {}", *e.at, e.step, e.what)});
  std::ranges::stable_sort(marks, {}, &Mark::step);
  return marks;
}

}  // namespace

RunAxis make_run_axis(const Metrics& metrics) {
  constexpr size_t kMostClockPoints = 400;
  const auto [first, last] = step_range(metrics);
  Curve clock = curve_of(metrics.steps, [](const StepEvent& e) { return e.elapsed_s; });
  for (size_t i = 1; i < clock.size(); ++i) clock[i].y = std::max(clock[i].y, clock[i - 1].y);
  const bool grows = !metrics.steps.empty() && metrics.steps.back().tokens;  // so that steps are no measure of tokens
  return {first, last, metrics.run && !grows ? metrics.run->tokens_per_step : 0, downsample(clock, kMostClockPoints),
          make_marks(metrics)};
}

OrderedJson plot_data(const std::vector<Chart>& charts, const std::vector<RunAxis>& runs) {
  double first = INFINITY, last = 0;
  for (const Chart& chart : charts)
    for (const Series& series : chart.series) {
      first = std::min(first, series.points.front().x);
      last = std::max(last, series.points.back().x);
    }
  if (!(first < last)) first = std::max(last, 1.0) - 1, last = first + 2;
  return charts_data(static_cast<int64_t>(first), static_cast<int64_t>(last), runs, charts);
}

OrderedJson plot_data(const Metrics& metrics, const std::vector<Chart>& charts, const std::optional<HeatMap>& heat) {
  const auto [first, last] = step_range(metrics);
  OrderedJson data = charts_data(first, last, {make_run_axis(metrics)}, charts);
  if (!heat) return data;
  OrderedJson panels = OrderedJson::array();
  for (const HeatPanel& panel : heat->panels) panels.push_back({{"experts", panel.experts}, {"load", panel.load}});
  data["heat"] = {{"steps", heat->steps}, {"panels", std::move(panels)}};
  return data;
}

}  // namespace witan
