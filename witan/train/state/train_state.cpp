#include "witan/train/state/train_state.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"

namespace witan {
namespace {

// Absent before there were any.
SpikeSkip::History spikes_from(const Json& json) {
  const auto found = json.find("spikes");
  if (found == json.end()) return {};
  try {
    SpikeSkip::History history{found->at("losses"), found->at("norms"), found->at("steps")};
    const auto known = static_cast<int64_t>(history.losses.size());
    require<CheckpointError>(history.norms.size() == history.losses.size() && history.steps >= known,
                             "the checkpoint's spikes have ", history.losses.size(), " losses and ",
                             history.norms.size(), " norms of ", history.steps, " steps");
    return history;
  } catch (const Json::exception&) {
    throw CheckpointError("the checkpoint's spikes must have lists of losses and norms, and a number of steps");
  }
}

// Absent if the model is not float16.
LossScaler::State loss_scaler_from(const Json& json) {
  const auto found = json.find("loss_scaler");
  if (found == json.end()) return {};
  try {
    LossScaler::State state{found->at("scale"), found->at("growth"), found->at("hysteresis")};
    require<CheckpointError>(std::isfinite(state.scale) && state.scale > 0, "the checkpoint's loss scale is ",
                             state.scale, ", and must be a finite number above 0");
    return state;
  } catch (const Json::exception&) {
    throw CheckpointError("the checkpoint's loss_scaler must have numbers scale, growth and hysteresis");
  }
}

// Absent before there were any.
std::vector<SourceUse> sources_from(const Json& json) {
  std::vector<SourceUse> sources;
  const auto found = json.find("sources");
  if (found == json.end()) return sources;
  try {
    for (const Json& one : *found) sources.push_back({one.at("name"), one.at("samples"), one.at("epochs")});
  } catch (const Json::exception&) {
    throw CheckpointError("the checkpoint's sources must have names, samples and epochs");
  }
  return sources;
}

// Absent before there were any.
std::vector<Rewind> rewinds_from(const Json& json) {
  const auto found = json.find("rewinds");
  return found == json.end() ? std::vector<Rewind>() : rewinds_from_json(*found);
}

// Absent without rollouts.
SampledSteps sampled_from(const Json& json) {
  const auto found = json.find("sampled");
  if (found == json.end()) return {};
  try {
    return {found->at("first"), found->at("last"), found->at("temperature")};
  } catch (const Json::exception&) {
    throw CheckpointError("the checkpoint's sampled must have numbers first, last and temperature");
  }
}

}  // namespace

Json rewinds_to_json(const std::vector<Rewind>& rewinds) {
  Json list = Json::array();
  for (const Rewind& one : rewinds)
    list.push_back({{"checkpoint", one.checkpoint},
                    {"at", one.at},
                    {"first_sample", one.first_sample},
                    {"consumed_samples", one.consumed_samples}});
  return list;
}

std::vector<Rewind> rewinds_from_json(const Json& json) {
  std::vector<Rewind> rewinds;
  try {
    for (const Json& one : json)
      rewinds.push_back({one.at("checkpoint"), one.at("at"), one.at("first_sample"), one.at("consumed_samples")});
  } catch (const Json::exception&) {
    throw CheckpointError("rewinds must have numbers checkpoint, at, first_sample and consumed_samples");
  }
  return rewinds;
}

Json TrainState::to_json() const {
  Json json = {{"step", step},       {"consumed_samples", consumed_samples}, {"updated_samples", updated_samples},
               {"updates", updates}, {"skipped_in_a_row", skipped_in_a_row}, {"elapsed_s", elapsed_s},
               {"data", data}};
  if (spikes.steps > 0) json["spikes"] = {{"losses", spikes.losses}, {"norms", spikes.norms}, {"steps", spikes.steps}};
  if (loss_scaler.scale > 0)
    json["loss_scaler"] = {
        {"scale", loss_scaler.scale}, {"growth", loss_scaler.growth}, {"hysteresis", loss_scaler.hysteresis}};
  for (const SourceUse& one : sources)
    json["sources"].push_back({{"name", one.name}, {"samples", one.samples}, {"epochs", one.epochs}});
  if (validation.best_step > 0) json["validation"] = validation.to_json();
  if (!rewinds.empty()) json["rewinds"] = rewinds_to_json(rewinds);
  if (sampled.last > 0)
    json["sampled"] = {{"first", sampled.first}, {"last", sampled.last}, {"temperature", sampled.temperature}};
  if (validation_loss && std::isfinite(*validation_loss)) json[kValidationLoss] = *validation_loss;
  return json;
}

TrainState TrainState::from_json(const Json& json) {
  const auto count = [&](const char* key) {
    const auto found = json.find(key);
    require<CheckpointError>(found != json.end() && found->is_number_integer() && *found >= 0, "the checkpoint's ", key,
                             " must be a whole number, not negative");
    return found->get<int64_t>();
  };
  TrainState state{count("step"),
                   count("consumed_samples"),
                   count("updates"),
                   count("skipped_in_a_row"),
                   0,
                   {},
                   spikes_from(json),
                   loss_scaler_from(json),
                   sources_from(json),
                   ValidationRecord::from_json(json),
                   rewinds_from(json)};
  // Absent before it was counted.
  state.updated_samples = count(json.contains("updated_samples") ? "updated_samples" : "consumed_samples");
  const auto elapsed = json.find("elapsed_s");
  require<CheckpointError>(elapsed != json.end() && elapsed->is_number(),
                           "the checkpoint's elapsed_s must be a number");
  state.elapsed_s = elapsed->get<double>();
  const auto data = json.find("data");
  require<CheckpointError>(data != json.end() && data->is_string(), "the checkpoint's data must be a text");
  state.data = data->get<std::string>();
  state.sampled = sampled_from(json);
  return state;
}

void ValidationRecord::add(int64_t step, double loss, const TrainConfig& config) {
  if (config.eval_interval == 0 || step % config.eval_interval != 0) return;
  if (std::isfinite(loss) && (best_step == 0 || loss < best))
    *this = {loss, step, 0};
  else
    ++since_best;
}

Json ValidationRecord::to_json() const {
  return {{"best", best}, {"best_step", best_step}, {"since_best", since_best}};
}

ValidationRecord ValidationRecord::from_json(const Json& scalars) {
  const auto found = scalars.find("validation");
  if (found == scalars.end()) return {};
  try {
    ValidationRecord record{found->at("best"), found->at("best_step"), found->at("since_best")};
    require<CheckpointError>(record.best_step >= 0 && record.since_best >= 0,
                             "the checkpoint's validation has a negative number of steps or evaluations");
    return record;
  } catch (const Json::exception&) {
    throw CheckpointError("the checkpoint's validation must have numbers best, best_step and since_best");
  }
}

}  // namespace witan
