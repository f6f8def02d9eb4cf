#include "witan/report/events/events.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "witan/base/error.h"
#include "witan/base/json.h"

namespace witan {
namespace {

// An archive visits every field of an event under its key. Each event lists its fields once, for both directions.
template <class Archive>
void visit(Archive& a, RunEvent& e) {
  a("name", e.name);
  a("started", e.started);
  a("config_hash", e.config_hash);
  a("world_size", e.world_size);
  a("parameters", e.parameters);
  a("active_parameters", e.active_parameters);
  a("tokens_per_step", e.tokens_per_step);
  a("total_steps", e.total_steps);
  a("ceiling_gflops", e.ceiling_gflops);
  a("layout", e.layout);
}

template <class Archive>
void visit(Archive& a, MemoryEvent& e) {
  a("rank", e.rank);
  a("tags", e.tags);
  a("peak", e.peak);
}

template <class Archive>
void visit(Archive& a, StepEvent& e) {
  a("step", e.step);
  a("loss", e.loss);
  a("mtp_losses", e.mtp_losses);
  a("lr", e.lr);
  a("grad_norm", e.grad_norm);
  a(StepScalar::Among::norms, e.scalars);
  a("load_balancing_loss", e.load_balancing_loss);
  a("z_loss", e.z_loss);
  a("tokens_per_s", e.tokens_per_s);
  a("gflops", e.gflops);
  a("ceiling_share", e.ceiling_share);
  a("data_wait_s", e.data_wait_s);
  a("step_s", e.step_s);
  a("forward_s", e.forward_s);
  a("backward_s", e.backward_s);
  a("reduction_s", e.reduction_s);
  a("optimizer_s", e.optimizer_s);
  a("load_max_over_mean", e.load_max_over_mean);
  a("dropped_share", e.dropped_share);
  a(StepScalar::Among::overflows, e.scalars);
  a("router", e.router);
  a("skipped", e.skipped);
  a("elapsed_s", e.elapsed_s);
  a("epochs", e.epochs);
  a("tokens", e.tokens);
}

template <class Archive>
void visit(Archive& a, ExpertsEvent& e) {
  a("step", e.step);
  a("layers", e.layers);
  a("load", e.load);
  a("statistics", e.statistics);
}

template <class Archive>
void visit(Archive& a, LayersEvent& e) {
  a("step", e.step);
  a("grad_norms", e.grad_norms);
  a("embedding_grad_norm", e.embedding_grad_norm);
  a("head_grad_norm", e.head_grad_norm);
}

template <class Archive>
void visit(Archive& a, GpusEvent& e) {
  a("step", e.step);
  a("temperature", e.temperature);
  a("power", e.power);
  a("memory_used", e.memory_used);
  a("throttle_reasons", e.throttle_reasons);
}

template <class Archive>
void visit(Archive& a, ActivationsEvent& e) {
  a("step", e.step);
  a("statistics", e.statistics);
}

template <class Archive>
void visit(Archive& a, EvalEvent& e) {
  a("step", e.step);
  a("loss", e.loss);
  a("bits_per_byte", e.bits_per_byte);
  a("set", e.set);
  a("seconds", e.seconds);
  a("router", e.router);
  a("figures", e.figures);
  a("reward", e.reward);
}

template <class Archive>
void visit(Archive& a, BaselineEvent& e) {
  a("name", e.name);
  a("bits_per_byte", e.bits_per_byte);
}

template <class Archive>
void visit(Archive& a, SaveEvent& e) {
  a("step", e.step);
  a("seconds", e.seconds);
  a("paused_s", e.paused_s);
}

template <class Archive>
void visit(Archive& a, AnomalyEvent& e) {
  a("step", e.step);
  a("what", e.what);
  a("action", e.action);
  a("at", e.at);
  a("text", e.text);
  a("folder", e.folder);
}

template <class Archive>
void visit(Archive& a, ResumeEvent& e) {
  a("step", e.step);
  a("time", e.time);
}

template <class Archive>
void visit(Archive& a, SampleEvent& e) {
  a("step", e.step);
  a("prompt", e.prompt);
  a("text", e.text);
  a("seed", e.seed);
}

template <class Archive>
void visit(Archive& a, EndEvent& e) {
  a("reason", e.reason);
  a("peak_resident", e.peak_resident);
  a("promised_resident", e.promised_resident);
}

// The kinds in the order of the variant, which is part of the format.
constexpr std::string_view kKinds[] = {"run",      "memory", "step",   "experts", "eval",
                                       "baseline", "save",   "sample", "end",     "measured_memory",
                                       "anomaly",  "resume", "layers", "gpus",    "activations"};
static_assert(std::size(kKinds) == std::variant_size_v<Event>);

class Output {
 public:
  explicit Output(std::string_view kind) { json_["kind"] = kind; }

  template <class Value>
  void operator()(const char* key, const Value& value) {
    json_[key] = value;
  }
  template <class Value>
  void operator()(const char* key, const std::optional<Value>& value) {
    if (value) json_[key] = *value;
  }
  void operator()(const char* key, const std::vector<int64_t>& value) {
    if (!value.empty()) json_[key] = value;
  }
  void operator()(const char* key, const std::vector<double>& values) {
    if (!values.empty()) json_[key] = values;
  }
  void operator()(const char* key, const std::map<std::string, double>& values) {
    if (!values.empty()) json_[key] = values;
  }
  void operator()(const char* key, const std::map<std::string, std::vector<double>>& lists) { json_[key] = lists; }
  // Undeclared ones stand with the norms.
  void operator()(StepScalar::Among among, const StepScalars& scalars) {
    for (const StepScalars::Entry& entry : scalars.all())
      if (among == (entry.declared ? entry.declared->among : StepScalar::Among::norms)) json_[entry.key] = entry.value;
  }
  // Rows of one number are written as numbers.
  void operator()(const char* key, const std::map<std::string, std::vector<std::vector<double>>>& values) {
    for (const auto& [name, rows] : values) {
      nlohmann::ordered_json& list = json_[key][name] = nlohmann::ordered_json::array();
      for (const std::vector<double>& row : rows)
        if (row.size() == 1)
          list.push_back(row.front());
        else
          list.push_back(row);
    }
  }

  std::string line() const { return json_.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace); }

 private:
  nlohmann::ordered_json json_;
};

class Input {
 public:
  Input(const Json& json, std::string_view where) : json_(json), where_(where) {}

  void operator()(const char* key, std::string& out) const {
    const Json& value = find(key);
    require<CorruptionError>(value.is_string(), where_, ": \"", key, "\" must be a string");
    out = value.get<std::string>();
  }
  void operator()(const char* key, bool& out) const {
    const Json& value = find(key);
    require<CorruptionError>(value.is_boolean(), where_, ": \"", key, "\" must be true or false");
    out = value.get<bool>();
  }
  void operator()(const char* key, int64_t& out) const { out = count(find(key), key); }
  void operator()(const char* key, double& out) const { out = number(find(key), key); }
  template <class Value>
  void operator()(const char* key, std::optional<Value>& out) const {
    if (json_.contains(key)) (*this)(key, out.emplace());
  }
  void operator()(StepScalar::Among among, StepScalars& out) const {
    for (const StepScalar* declared : kStepScalars)
      if (declared->among == among && json_.contains(declared->key))
        out.set(*declared, number(json_[declared->key], declared->key));
  }
  void operator()(const char* key, std::vector<int64_t>& out) const {
    if (!json_.contains(key)) return;
    for (const Json& value : list(json_[key], key)) out.push_back(count(value, key));
  }
  void operator()(const char* key, std::vector<double>& out) const {
    if (!json_.contains(key)) return;
    for (const Json& value : list(json_[key], key)) out.push_back(number(value, key));
  }
  void operator()(const char* key, std::vector<std::vector<double>>& out) const {
    for (const Json& row : list(find(key), key)) {
      std::vector<double>& numbers = out.emplace_back();
      for (const Json& value : list(row, key)) numbers.push_back(number(value, key));
    }
  }
  void operator()(const char* key, std::map<std::string, int64_t>& out) const {
    for (const auto& [name, value] : object(find(key), key).items()) out[name] = count(value, key);
  }
  void operator()(const char* key, std::map<std::string, double>& out) const {
    if (!json_.contains(key)) return;
    for (const auto& [name, value] : object(json_[key], key).items()) out[name] = number(value, key);
  }
  void operator()(const char* key, std::map<std::string, std::vector<double>>& out) const {
    for (const auto& [name, values] : object(find(key), key).items())
      for (auto& read = out[name]; const Json& value : list(values, key)) read.push_back(number(value, key));
  }
  void operator()(const char* key, std::map<std::string, std::vector<std::vector<double>>>& out) const {
    if (!json_.contains(key)) return;
    for (const auto& [name, rows] : object(json_[key], key).items()) {
      auto& read = out[name];
      for (const Json& row : list(rows, key)) {
        std::vector<double>& numbers = read.emplace_back();
        if (!row.is_array()) numbers.push_back(number(row, key));
        if (row.is_array())
          for (const Json& value : row) numbers.push_back(number(value, key));
      }
    }
  }

 private:
  const Json& find(const char* key) const {
    const auto found = json_.find(key);
    require<CorruptionError>(found != json_.end(), where_, ": the key \"", key, "\" is missing");
    return *found;
  }
  const Json& list(const Json& value, const char* key) const {
    require<CorruptionError>(value.is_array(), where_, ": \"", key, "\" must be a list");
    return value;
  }
  const Json& object(const Json& value, const char* key) const {
    require<CorruptionError>(value.is_object(), where_, ": \"", key, "\" must be an object");
    return value;
  }
  double number(const Json& value, const char* key) const {
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
    require<CorruptionError>(value.is_number(), where_, ": \"", key, "\" must be a number or null");
    return value.get<double>();
  }
  int64_t count(const Json& value, const char* key) const {
    require<CorruptionError>(value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX, where_, ": \"", key,
                             "\" must be a whole number from 0 to 2^63 - 1");
    return value.get<int64_t>();
  }

  const Json& json_;
  std::string_view where_;
};

// The keys of a step's own fields.
class StepKeys {
 public:
  StepKeys() {
    StepEvent step;
    visit(*this, step);
  }
  template <class Value>
  void operator()(const char* key, Value&) {
    keys_.insert(key);
  }
  void operator()(StepScalar::Among, StepScalars&) {}
  bool contains(const std::string& key) const { return key == "kind" || keys_.contains(key); }

 private:
  std::set<std::string> keys_;
};

const StepKeys& step_keys() {
  static const StepKeys kFields;
  return kFields;
}

// Numbers of a line that are no fields: scalars that this program does not declare.
void add_undeclared(const Json& json, StepScalars& scalars) {
  for (const auto& [key, value] : json.items())
    if (value.is_number() && !step_keys().contains(key) && !scalars.get(key)) scalars.set(key, value.get<double>());
}

void check(const ExpertsEvent& e, std::string_view where) {
  require<CorruptionError>(e.layers.empty() || e.layers.size() == e.load.size(), where, ": \"layers\" names ",
                           e.layers.size(), " layers, \"load\" has ", e.load.size(), " rows");
  for (const auto& [name, rows] : e.statistics)
    require<CorruptionError>(rows.size() == e.load.size(), where, ": \"", name, "\" has ", rows.size(),
                             " rows, \"load\" has ", e.load.size());
}

// Older values, which have keys of their own in a step.
std::optional<double> StepEvent::*field_of(const std::string& name) {
  if (name == "load_balancing_loss") return &StepEvent::load_balancing_loss;
  if (name == "z_loss") return &StepEvent::z_loss;
  if (name == "load_max_over_mean") return &StepEvent::load_max_over_mean;
  if (name == "dropped_share") return &StepEvent::dropped_share;
  return nullptr;
}

template <class E>
Event parse_as(const Json& json, std::string_view where) {
  E event;
  const Input input(json, where);
  visit(input, event);
  if constexpr (std::is_same_v<E, ExpertsEvent>) check(event, where);
  if constexpr (std::is_same_v<E, StepEvent>) add_undeclared(json, event.scalars);
  return event;
}

template <size_t I = 0>
std::optional<Event> parse_kind(std::string_view kind, const Json& json, std::string_view where) {
  if constexpr (I < std::variant_size_v<Event>) {
    if (kind == kKinds[I]) return parse_as<std::variant_alternative_t<I, Event>>(json, where);
    return parse_kind<I + 1>(kind, json, where);
  } else {
    return std::nullopt;
  }
}

}  // namespace

bool is_step_figure(const std::string& key) {
  return step_keys().contains(key) || std::ranges::any_of(kStepScalars, [&](const StepScalar* declared) {
           return !declared->is_loss && key == declared->key;
         });
}

void set_router_statistic(StepEvent& event, const std::string& name, double value) {
  if (const auto field = field_of(name))
    event.*field = value;
  else
    event.router[name] = value;
}

std::optional<double> router_statistic(const StepEvent& event, const std::string& name) {
  if (const auto field = field_of(name)) return event.*field;
  const auto found = event.router.find(name);
  return found == event.router.end() ? std::nullopt : std::optional(found->second);
}

std::string format_event(const Event& event) {
  Output output(kKinds[event.index()]);
  std::visit([&](auto copy) { visit(output, copy); }, event);
  return output.line();
}

std::optional<Event> parse_event(std::string_view line, std::string_view where) {
  const Json json = parse_json(line, where, 4);
  require<CorruptionError>(json.is_object(), where, ": an event must be a JSON object");
  std::string kind;
  Input(json, where)("kind", kind);
  return parse_kind(kind, json, where);
}

std::optional<size_t> kind_of(std::string_view line) {
  static constexpr std::string_view kBegin = R"({"kind":")", kBehind = R"(",)";
  if (!line.starts_with(kBegin)) return std::nullopt;
  line.remove_prefix(kBegin.size());
  const auto* const kind = std::ranges::find(kKinds, line.substr(0, line.find('"')));
  if (kind == std::end(kKinds) || !line.substr(kind->size()).starts_with(kBehind)) return std::nullopt;
  return static_cast<size_t>(kind - std::begin(kKinds));
}

std::optional<int64_t> quick_step(std::string_view line) {
  static constexpr std::string_view kKey = R"("step":)";
  line.remove_prefix(std::min(line.find(',') + 1, line.size()));
  if (!line.starts_with(kKey)) return std::nullopt;
  const char* const begin = line.data() + kKey.size();
  const char* const end = line.data() + line.size();
  int64_t step = 0;
  const auto [behind, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || behind == end || (*behind != ',' && *behind != '}') || step < 0) return std::nullopt;
  return step;
}

}  // namespace witan
