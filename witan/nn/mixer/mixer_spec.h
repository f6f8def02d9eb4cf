// The token mixer of one layer: the one place that lists the kinds there are.
#pragma once

#include <memory>
#include <variant>

#include "witan/nn/attention/latent_spec.h"
#include "witan/nn/attention/multi_head_spec.h"
#include "witan/nn/mixer/no_mixer.h"

namespace witan {

// A kind that a program brings along, outside of this library.
struct CustomMixer {
  std::shared_ptr<const MixerKind> kind;  // never null
};

using MixerSpec = std::variant<MultiHeadSpec, LatentSpec, NoMixer, CustomMixer>;

const MixerKind& mixer_kind(const MixerSpec& spec);

// Null: the layer's mixer is no attention of heads, or there is none.
const AttentionSpec* attention_of(const MixerSpec& spec);
// Positions that a token attends to, its own included; 0: all up to its own, or the mixer has no window.
int64_t window_of(const MixerSpec& spec);
// How queries and keys rotate; dims 0: they do not.
kernels::RopeArgs rotation_of(const MixerSpec& spec);

}  // namespace witan
