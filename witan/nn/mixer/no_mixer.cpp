#include "witan/nn/mixer/no_mixer.h"

#include "witan/nn/mixer/token_mixer.h"

namespace witan {

std::unique_ptr<TokenMixer> NoMixer::make(const Builder& /*builder*/, const MixerModel& /*model*/,
                                          const ContextAxis& /*context*/) const {
  return nullptr;
}

}  // namespace witan
