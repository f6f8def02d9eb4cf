#include "witan/nn/mixer/token_mixer.h"

#include <algorithm>

#include "witan/kernels/attention/heads.h"
#include "witan/nn/mixer/mixer_kind.h"
#include "witan/nn/mixer/mixer_spec.h"
#include "witan/nn/mixer/sequence_state.h"

namespace witan {

const MixerKind& mixer_kind(const MixerSpec& spec) {
  return std::visit(
      [](const auto& of) -> const MixerKind& {
        if constexpr (requires { *of.kind; })
          return *of.kind;
        else
          return of;
      },
      spec);
}

const AttentionSpec* attention_of(const MixerSpec& spec) {
  if (const auto* multi_head = std::get_if<MultiHeadSpec>(&spec)) return multi_head;
  return std::get_if<LatentSpec>(&spec);
}

int64_t window_of(const MixerSpec& spec) {
  const AttentionSpec* const attention = attention_of(spec);
  return attention ? attention->window : 0;
}

kernels::RopeArgs rotation_of(const MixerSpec& spec) {
  const AttentionSpec* const attention = attention_of(spec);
  return attention ? attention->rope : kernels::RopeArgs();
}

double MixerKind::megatron_weights(const MixerModel& model, int64_t seq_length) const {
  return static_cast<double>(parameters(model).weights) + mixing_flops(seq_length) / 2;
}

std::unique_ptr<TokenMixer> NoMixer::make(const Builder& /*builder*/, const MixerModel& /*model*/,
                                          const ContextAxis& /*context*/) const {
  return nullptr;
}

Tensor rotary_angles(Stream& stream, const Positions& where, const kernels::RopeArgs& rope, DType dtype) {
  if (rope.dims == 0) return {};
  const auto made = std::ranges::find(where.tables, rope, &RotaryTable::rope);
  if (made != where.tables.end()) return made->angles;
  const Tensor angles = stream.empty({where.positions.elements(), rope.dims}, dtype);
  kernels::rotary_table(stream, angles, where.positions, rope);
  return angles;
}

// A layer may be able to resume from fewer tokens than another, so layers are asked again until all agree.
int64_t resumable(const SequenceStates& states, int64_t wanted, int64_t held, int64_t reach) {
  for (int64_t before = -1; wanted > 0 && wanted != before;) {
    before = wanted;
    for (const auto& state : states)
      if (state) wanted = state->resumable(wanted, held, reach);
  }
  return wanted;
}

void copy_row(Stream& stream, const SequenceStates& states, int64_t from, int64_t to) {
  for (const auto& state : states)
    if (state) state->copy_row(stream, from, to);
}

}  // namespace witan
