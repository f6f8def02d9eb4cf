#include "witan/train/step/features/qk_clip.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "witan/kernels/attention/qk_clip.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

int64_t most_heads(const ModelConfig& model) {
  int64_t most = 0;
  for (const LayerSpec& layer : model.layers()) most = std::max(most, mixer_kind(layer.mixer).logit_heads());
  return most;
}

}  // namespace

QkClip::QkClip(const StepParts& parts, const StepActivations* activations)
    : stream_(parts.stream),
      world_(parts.groups.world()),
      config_(parts.config.optimizer),
      optimizer_(parts.optimizer),
      state_(parts.state),
      activations_(activations) {
  const ModelConfig& model = parts.config.model;
  largest_ = stream_.empty({model.num_layers + model.mtp_num_layers, most_heads(model)},
                           accumulator(model.compute_dtype()), MemoryTag::optimizer);
  for (const auto& [layer, mixer] : parts.model.mixers()) {
    ClippedLogits* const logits = mixer->clipped_logits();
    if (logits == nullptr) continue;
    const Tensor of_layer =
        largest_.narrow(0, layer, 1).reshape({largest_.size(1)}).narrow(0, 0, logits->logit_heads());
    logits->use_max_logits(of_layer);
    for (const ClippedLogits::Projection& projection : logits->clipped()) {
      require<ConfigError>(!projection.parameter->frozen, "qk_clip = true scales ", projection.parameter->name(),
                           ", which is frozen (freeze, lora_rank); set qk_clip = false, or train it");
      clipped_[projection.parameter] = {projection, of_layer, logits->key_groups()};
    }
  }
}

double QkClip::exponent(ClippedLogits::Projection::Of of) const {
  switch (of) {
    case ClippedLogits::Projection::Of::queries:
      return config_.qk_clip_alpha;
    case ClippedLogits::Projection::Of::keys:
      return 1 - config_.qk_clip_alpha;
    case ClippedLogits::Projection::Of::queries_of_shared_keys:
      return 1;
    default:
      return 0;
  }
}

void QkClip::begin_step() {
  kernels::fill(stream_, largest_, -std::numeric_limits<double>::infinity());
}

void QkClip::after_update() {
  world_.all_reduce(stream_, largest_.reshape({largest_.elements()}), Reduce::max);
  optimizer_.visit_shards([&](const ParameterShard& shard, const Tensor& remainder) {
    const auto found = clipped_.find(shard.parameter);
    if (found == clipped_.end()) return;
    const auto& [projection, largest, groups] = found->second;
    const Parameter& parameter = *shard.parameter;
    const int64_t of_group = parameter.global_shape().elements() / groups;
    const int64_t columns = parameter.global_shape().elements() / parameter.global_shape()[0];
    // Ranks hold consecutive rows.
    kernels::clip_projection(stream_, {parameter.value_shard(shard.first, shard.elements), remainder}, largest, groups,
                             state_.common(),
                             {.threshold = config_.qk_clip_threshold,
                              .exponent = exponent(projection.of),
                              .first = parameter.region().first() + shard.first,
                              .per_group = of_group,
                              .leading = projection.rows == 0 ? of_group : projection.rows * columns,
                              .exponent_of_rest = exponent(projection.rest)});
  });
}

std::vector<double> QkClip::read() const {
  std::vector<double> values;
  dispatch_floating(largest_.dtype(), [&]<class A>() {
    std::vector<A> all(static_cast<size_t>(largest_.elements()));
    stream_.read(all.data(), largest_);
    values.assign(all.begin(), all.end());
  });
  return values;
}

void QkClip::report(const StepReport::Result& /*read*/, StepResult& result) {
  result.scalars.set(kMaxAttentionLogit, largest());
  if (activations_ && activations_->wanted()) result.activations["attention_logit_max"] = largest_of_layers();
}

double QkClip::largest() const {
  return std::ranges::max(read());
}

std::vector<double> QkClip::largest_of_layers() const {
  const std::vector<double> all = read();
  const int64_t heads = largest_.size(1);
  std::vector<double> layers;
  for (auto layer = all.begin(); layer != all.end(); layer += heads) {
    const double most = *std::max_element(layer, layer + heads);
    layers.push_back(std::isfinite(most) ? most : std::nan(""));  // begin_step() fills with -infinity
  }
  return layers;
}

}  // namespace witan
