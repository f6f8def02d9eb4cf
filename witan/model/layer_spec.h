// The specification of one layer of a model: resolved once from the configuration, and read by all that build, count or
// plan layers.
#pragma once

#include <optional>

#include "witan/nn/mixer/mixer_spec.h"
#include "witan/nn/mlp.h"

namespace witan {

struct LayerSpec {
  MixerSpec mixer;
  bool moe = false;  // an MoE layer; else a dense one
  MlpConfig mlp;     // of the dense layer, or of each expert, with the ffn_hidden_size that is its own
  std::optional<int64_t> skip_from = {};  // the earlier layer whose output this one adds to its input
  bool embedding_residual = false;        // this one mixes the embedding into its input
};

}  // namespace witan
