#include "witan/report/events/figures.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "witan/base/numbers/median.h"
#include "witan/report/events/curve.h"

namespace witan {
namespace {

using nlohmann::ordered_json;

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json list_of(const auto& events, const auto& json) {
  ordered_json list = ordered_json::array();
  for (const auto& event : events) list.push_back(json(event));
  return list;
}

ordered_json json_of(const std::optional<EvalEvent>& eval) {
  if (!eval) return nullptr;
  ordered_json json = {{"step", eval->step}, {"loss", eval->loss}, {"bits_per_byte", eval->bits_per_byte}};
  if (!eval->router.empty()) json["router"] = eval->router;
  if (eval->reward) json["reward"] = *eval->reward;
  return json;
}

ordered_json json_of(const std::vector<EvalEvent>& evals) {
  return {{"last", json_of(evals.empty() ? std::optional<EvalEvent>() : evals.back())},
          {"best", json_of(best_eval(evals))}};
}

ordered_json validation_json(const Metrics& m) {
  ordered_json json = json_of(m.evals);
  json["sets"] = ordered_json::object();
  for (const auto& [name, evals] : m.set_evals) json["sets"][name] = json_of(evals);
  json["baselines"] = list_of(m.baselines, [](const BaselineEvent& one) {
    return ordered_json{{"name", one.name}, {"bits_per_byte", one.bits_per_byte}};
  });
  return json;
}

ordered_json training_json(const Metrics& m) {
  const std::optional<StepEvent> last = m.steps.empty() ? std::optional<StepEvent>() : m.steps.back();
  const auto of_last = [&](const auto& of) { return last ? ordered_json(of(*last)) : ordered_json(nullptr); };
  const std::optional<SmoothedFigure> loss = training_loss(m), reward = training_reward(m);
  return {{"step", of_last([](const StepEvent& e) { return e.step; })},
          {"total_steps", m.run ? ordered_json(m.run->total_steps) : ordered_json(nullptr)},
          {"loss", of_last([](const StepEvent& e) { return e.loss; })},
          {"smoothed_loss", loss ? ordered_json(loss->value) : ordered_json(nullptr)},
          {"smoothed_reward", reward ? ordered_json(reward->value) : ordered_json(nullptr)},
          {"lr", of_last([](const StepEvent& e) { return e.lr; })},
          {"grad_norm", of_last([](const StepEvent& e) { return e.grad_norm; })},
          {"tokens", or_null(tokens_seen(m))},
          {"tokens_per_step", m.run ? ordered_json(m.run->tokens_per_step) : ordered_json(nullptr)},
          {"epochs", last ? or_null(last->epochs) : ordered_json(nullptr)},
          {"skipped_steps", skipped_steps(m)},
          {"elapsed_s", of_last([](const StepEvent& e) { return e.elapsed_s; })}};
}

ordered_json speed_json(const Metrics& m) {
  const RunSpeed speed = run_speed(m);
  const double ceiling = ceiling_gflops(m);
  return {{"tokens_per_s", speed.tokens_per_s},
          {"gflops", speed.gflops},
          {"ceiling_gflops", ceiling > 0 ? ordered_json(ceiling) : ordered_json(nullptr)},
          {"ceiling_share", ceiling > 0 ? ordered_json(speed.gflops / ceiling) : ordered_json(nullptr)}};
}

ordered_json ranks_json(const auto& memory) {
  return list_of(memory, [](const MemoryEvent& one) {
    return ordered_json{{"rank", one.rank}, {"peak", one.peak}, {"tags", one.tags}};
  });
}

ordered_json memory_json(const Metrics& m) {
  return {{"peak", or_null(peak_memory(m.memory))},
          {"planned", ranks_json(m.memory)},
          {"measured", ranks_json(m.measured_memory)},
          {"peak_resident", m.end ? or_null(m.end->peak_resident) : ordered_json(nullptr)},
          {"promised_resident", m.end ? or_null(m.end->promised_resident) : ordered_json(nullptr)}};
}

ordered_json saves_json(const std::vector<SaveEvent>& saves) {
  double seconds = 0, paused = 0;
  for (const SaveEvent& save : saves) seconds += save.seconds, paused += save.paused_s;
  return {{"count", saves.size()}, {"seconds", seconds}, {"paused_s", paused}};
}

ordered_json anomalies_json(const std::vector<AnomalyEvent>& anomalies) {
  return list_of(anomalies, [](const AnomalyEvent& one) {
    return ordered_json{{"step", one.at.value_or(one.step)},
                        {"what", one.what},
                        {"action", or_null(one.action)},
                        {"text", one.text},
                        {"folder", or_null(one.folder)}};
  });
}

ordered_json model_json(const std::optional<RunEvent>& run) {
  if (!run) return {{"parameters", nullptr}, {"active_parameters", nullptr}};
  return {{"parameters", run->parameters}, {"active_parameters", run->active_parameters}};
}

std::optional<SmoothedFigure> smoothed(const Metrics& metrics, const auto& of) {
  Curve curve;
  for (const StepEvent& e : metrics.steps)
    if (const std::optional<double> value = of(e); value && std::isfinite(*value))
      curve.push_back({static_cast<double>(e.step), *value});
  if (curve.empty()) return std::nullopt;
  const double span = smoothing_span(curve.size());
  return SmoothedFigure{smooth(curve, span).back().y, span, static_cast<int64_t>(curve.back().x)};
}

double finite_median(const std::vector<StepEvent>& steps, double StepEvent::*of) {
  std::vector<double> values;
  for (const StepEvent& step : steps)
    if (std::isfinite(step.*of)) values.push_back(step.*of);
  return values.empty() ? NAN : median(std::move(values));
}

}  // namespace

std::optional<SmoothedFigure> training_loss(const Metrics& metrics) {
  return smoothed(metrics, [](const StepEvent& e) { return std::optional(e.loss); });
}

std::optional<SmoothedFigure> training_reward(const Metrics& metrics) {
  return smoothed(metrics, [](const StepEvent& e) { return e.scalars.get(kReward); });
}

const char* unit_of_loss(const Metrics& metrics) {
  const auto have = [&](std::string_view key) {
    return std::ranges::any_of(metrics.steps, [&](const StepEvent& e) { return e.scalars.get(key).has_value(); });
  };
  if (have(kReward.key) || have(kPolicyRatio.key)) return "surrogate of policy gradients";
  return have("reward_accuracy") ? "of preferences" : "nats per token";
}

double ceiling_gflops(const Metrics& metrics) {
  double ceiling = metrics.run ? metrics.run->ceiling_gflops : 0;
  if (ceiling > 0)
    for (const StepEvent& e : metrics.steps) ceiling = std::max(ceiling, e.gflops);
  return ceiling;
}

int64_t skipped_steps(const Metrics& metrics) {
  return std::ranges::count_if(metrics.steps, &StepEvent::skipped);
}

std::optional<int64_t> tokens_seen(const Metrics& metrics) {
  if (!metrics.run || metrics.steps.empty()) return std::nullopt;
  const StepEvent& last = metrics.steps.back();
  return last.tokens.value_or(last.step * metrics.run->tokens_per_step);
}

std::optional<int64_t> peak_memory(const std::vector<MemoryEvent>& memory) {
  std::optional<int64_t> peak;
  for (const MemoryEvent& e : memory) peak = std::max(peak.value_or(0), e.peak);
  return peak;
}

std::optional<EvalEvent> best_eval(const std::vector<EvalEvent>& evals) {
  std::optional<EvalEvent> best;
  for (const EvalEvent& one : evals)
    if (std::isfinite(one.loss) && (!best || one.loss <= best->loss)) best = one;
  return best;
}

nlohmann::ordered_json figures_json(const Metrics& m) {
  return {{"started", m.run ? ordered_json(m.run->started) : ordered_json(nullptr)},
          {"end", m.end ? ordered_json(m.end->reason) : ordered_json(nullptr)},
          {"config_hash", m.run ? ordered_json(m.run->config_hash) : ordered_json(nullptr)},
          {"ranks", m.run ? ordered_json(m.run->world_size) : ordered_json(nullptr)},
          {"layout", m.run ? or_null(m.run->layout) : ordered_json(nullptr)},
          {"model", model_json(m.run)},
          {"training", training_json(m)},
          {"validation", validation_json(m)},
          {"speed", speed_json(m)},
          {"memory", memory_json(m)},
          {"saves", saves_json(m.saves)},
          {"anomalies", anomalies_json(m.anomalies)},
          {"resumes", list_of(m.resumes, [](const ResumeEvent& one) {
             return ordered_json{{"step", one.step}, {"time", one.time}};
           })}};
}

RunSpeed run_speed(const Metrics& metrics) {
  return {finite_median(metrics.steps, &StepEvent::tokens_per_s), finite_median(metrics.steps, &StepEvent::gflops)};
}

}  // namespace witan
