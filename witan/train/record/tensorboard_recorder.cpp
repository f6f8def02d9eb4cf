#include "witan/train/record/tensorboard_recorder.h"

#include <algorithm>
#include <cmath>

#include "witan/base/error.h"
#include "witan/train/config/saved_config.h"

namespace witan {
namespace {

// The tags by which the HPARAMS tab compares runs.
constexpr const char* kLossTag = "lm loss";
constexpr const char* kValidationTag = "lm loss validation";
constexpr const char* kBitsPerByteTag = "bits-per-byte";

tfevents::Hyperparameter hyperparameter(const Field& field) {
  tfevents::Hyperparameter parameter{field.name, field.text()};  // tables as they are written
  if (auto* flag = std::get_if<bool*>(&field.value)) parameter.value = **flag;
  if (auto* integer = std::get_if<int64_t*>(&field.value)) parameter.value = static_cast<double>(**integer);
  if (auto* number = std::get_if<double*>(&field.value)) parameter.value = **number;
  if (auto* text = std::get_if<std::string*>(&field.value)) parameter.value = **text;
  parameter.choices = field.choices;
  return parameter;
}

}  // namespace

std::vector<tfevents::Hyperparameter> hyperparameters_of(RunConfig config, RunConfig given) {
  RunConfig defaults;
  config.load = given.load = {};  // they apply to one call
  const Fields fields = config.fields(), said = given.fields(), at_first = defaults.fields();
  std::vector<tfevents::Hyperparameter> parameters;
  for (size_t i = 0; i < fields.size(); ++i) {
    parameters.push_back(hyperparameter(fields[i]));
    parameters.back().differs = said[i].text() != at_first[i].text();
  }
  return parameters;
}

TensorboardRecorder::TensorboardRecorder(const RunConfig& config, const RunConfig& given, const fs::path& folder,
                                         int64_t first_step)
    : ranks_(config.parallel.ranks),
      megatron_layers_(config.model.moe.moe_per_layer_logging),
      session_(folder, hyperparameters_of(config, given), {kValidationTag, kBitsPerByteTag, kLossTag},
               config.log.tensorboard_dir.empty() ? "" : config.train.run),
      writer_(folder, first_step) {
  writer_.add_text(first_step, "configuration", "```toml\n" + config_to_save(given) + "```\n");
}

void TensorboardRecorder::step(const TrainState& state, const StepEvent& event, int64_t samples, double iteration_s,
                               const std::vector<int64_t>& layers, const StepStatistics& router) {
  std::vector<tfevents::Scalar> scalars = {
      {kLossTag, event.loss},
      {"learning-rate", event.lr},
      {"grad-norm", event.grad_norm},
      {"batch-size", static_cast<double>(samples)},
      {"world-size", static_cast<double>(ranks_)},
      {"samples vs steps", static_cast<double>(state.consumed_samples)},
      {"iteration-time", iteration_s},
      {"data-wait-time", event.data_wait_s},
      {"tokens-per-second", event.tokens_per_s},
  };
  for (size_t module = 0; module < event.mtp_losses.size(); ++module)
    scalars.push_back({cat("mtp_", module + 1, " loss"), event.mtp_losses[module]});
  for (const auto& [key, tag, value] : event.scalars.shown(&StepScalar::tensorboard))
    scalars.push_back({tag.name, value});
  std::vector<tfevents::Histogram> histograms;
  for (const StepStatistics::Value& value : router.values()) {
    const std::string& tag = value.declared.display_tag();
    if (value.model) scalars.push_back({tag, *value.model});
    for (size_t i = 0; i < value.layers.size(); ++i) {
      const std::string of_layer = cat(tag, "/layer ", layers[i]);
      const std::vector<double>& found = value.layers[i];
      if (value.declared.shape == RouterStatistic::Shape::layer) scalars.push_back({of_layer, found.front()});
      if (megatron_layers_ && value.declared.loss_coefficient)
        scalars.push_back({cat("moe/", tag, "_layer_", layers[i]), found.front()});
      if (value.declared.shape == RouterStatistic::Shape::expert && value.declared.whole_numbers)
        histograms.push_back(tfevents::histogram_of_counts(of_layer, std::vector<int64_t>(found.begin(), found.end())));
    }
  }
  writer_.add(state.step, scalars, histograms);
}

void TensorboardRecorder::activations(int64_t step, const std::map<std::string, std::vector<double>>& statistics) {
  std::vector<tfevents::Scalar> scalars;
  for (const auto& [name, layers] : statistics)
    for (size_t layer = 0; layer < layers.size(); ++layer)
      if (!std::isnan(layers[layer])) scalars.push_back({cat(name, "/layer ", layer), layers[layer]});
  writer_.add(step, scalars);
}

void TensorboardRecorder::memory_in_use(int64_t step, const megatron_log::Memory& memory, int64_t blocks) {
  writer_.add(step, {{"mem-reserved-bytes", static_cast<double>(memory.reserved)},
                     {"mem-allocated-bytes", static_cast<double>(memory.allocated)},
                     {"mem-max-allocated-bytes", static_cast<double>(memory.max_allocated)},
                     {"mem-allocated-count", static_cast<double>(blocks)}});
}

void TensorboardRecorder::interval(int64_t step, const std::vector<megatron_log::RankTimes>& times) {
  std::vector<tfevents::Scalar> scalars;
  for (const megatron_log::RankTimes& part : times) scalars.push_back({part.name + "-time", part.max_ms * 1e-3});
  if (!scalars.empty()) writer_.add(step, scalars);
}

void TensorboardRecorder::memory(int64_t step, const std::vector<MemoryEvent>& measured) {
  std::vector<tfevents::Scalar> scalars;
  for (const MemoryEvent& rank : measured)
    scalars.push_back({cat("mem-max-allocated-bytes/rank ", rank.rank), static_cast<double>(rank.peak)});
  writer_.add(step, scalars);
}

void TensorboardRecorder::evaluation(const EvalEvent& event, const StepStatistics& router) {
  const std::string of = event.set ? " on " + *event.set : "";
  std::vector<tfevents::Scalar> scalars = {{kValidationTag + of, event.loss}};
  if (event.figures.empty()) {
    scalars.push_back({"lm loss validation ppl" + of, std::exp(std::min(event.loss, 20.0))});
    scalars.push_back({kBitsPerByteTag + of, event.bits_per_byte});
  }
  if (event.reward) scalars.push_back({"eval reward" + of, *event.reward});
  for (const auto& [name, value] : event.figures) scalars.push_back({cat(name, " validation", of), value});
  for (const StepStatistics::Value& value : router.values())
    if (event.router.contains(value.declared.name))
      scalars.push_back({cat(value.declared.display_tag(), " validation", of), *value.model});
  writer_.add(event.step, scalars);
}

}  // namespace witan
