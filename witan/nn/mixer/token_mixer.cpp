#include "witan/nn/mixer/mixer_spec.h"

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

}  // namespace witan
