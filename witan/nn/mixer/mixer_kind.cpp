#include "witan/nn/mixer/mixer_kind.h"

namespace witan {

double MixerKind::megatron_weights(const MixerModel& model, int64_t seq_length) const {
  return static_cast<double>(parameters(model).weights) + mixing_flops(seq_length) / 2;
}

}  // namespace witan
