#include "witan/train/step/step_features.h"

#include <algorithm>

#include "witan/tensor/trace_context.h"
#include "witan/train/step/features/activation_offload.h"
#include "witan/train/step/features/bounded_experts.h"
#include "witan/train/step/features/lent_services.h"
#include "witan/train/step/features/loss_scaling.h"
#include "witan/train/step/features/pass_notes.h"
#include "witan/train/step/features/qk_clip.h"
#include "witan/train/step/features/spike_skipping.h"
#include "witan/train/step/features/state_checks.h"
#include "witan/train/step/features/step_activations.h"
#include "witan/train/step/features/step_routes.h"

namespace witan {

const LossScaler* StepFeatures::loss_scaler() const {
  for (const auto& feature : all_)
    if (const LossScaler* scaler = feature->loss_scaler()) return scaler;
  return nullptr;
}

bool StepFeatures::recordable() const {
  return std::ranges::all_of(all_, [](const auto& feature) { return feature->recordable(); });
}

bool StepFeatures::may_repeat() const {
  return std::ranges::any_of(all_, [](const auto& feature) { return feature->may_repeat(); });
}

bool StepFeatures::repeats(const StepReport::Result& read) const {
  return std::ranges::any_of(all_, [&](const auto& feature) { return feature->repeats(read); });
}

std::vector<StepResult> StepFeatures::repetitions() const {
  std::vector<StepResult> all;
  for (const auto& feature : all_)
    for (StepResult& result : feature->repetitions()) all.push_back(std::move(result));
  return all;
}

std::vector<bool> StepFeatures::launches() const {
  std::vector<bool> all;
  for (const auto& feature : all_) all.push_back(feature->launches_all());
  return all;
}

void StepFeatures::set_launches(const std::vector<bool>& all) const {
  for (size_t i = 0; i < all_.size(); ++i) all_[i]->set_launches_all(all[i]);
}

// The order matters where features scale or skip the same update. Clipping skips steps that are not finite, bounded
// experts those whose rows had no room; the loss scale adapts after both. A spike is skipped last, since the loss scale
// must not take it for an overflow.
StepFeatures make_step_features(const StepParts& parts) {
  const auto& [stream, groups, config, model, units, gradients, shards, optimizer, state] = parts;
  const TraceContextScope trace_context(stream, TraceContext::Phase::set_up);
  const OptimizerConfig& updates = config.optimizer;
  StepFeatures features;
  features.add<StateChecks>(parts);
  features.add<PassNotes>(stream, gradients);
  features.add<SideStreams>(stream, groups, config);
  if (ActivationOffload::applies(config)) features.add<ActivationOffload>(stream, groups, config);
  if (GlobalBatchLoad::counts(config.model.moe)) features.add<GlobalBatchLoad>(stream, groups, config, model.routers());
  GradientClipping& clipping = features.add<GradientClipping>(stream, state, updates.clip_grad);
  if (BoundedExperts::bounds(groups, config.model.moe))
    features.add<BoundedExperts>(stream, groups, config.model.moe, state);
  if (config.model.compute_dtype() == DType::f16)
    clipping.unscale_by(features.add<LossScaling>(stream, updates, state).scaler());
  if (updates.skip_step_sigma > 0) features.add<SpikeSkipping>(stream, groups, updates, state);
  if (config.log.log_activations > 0) features.add<StepActivations>(config.log.log_activations);
  if (updates.qk_clip) features.add<QkClip>(parts, features.find<StepActivations>());
  if (!config.train.record_routes.empty() || !config.train.replay_routes.empty() || config.rollout.router_replay)
    features.add<StepRoutes>(stream, model, config);
  return features;
}

}  // namespace witan
