// Random words of a place of the model, in training: kernels/pointwise/dropout.h's of a micro-batch, one by one.
#pragma once

#include "witan/base/rng.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels::cpu {

// The generator of a place's words. Reads the iteration.
inline Philox words_of(const Dropout& where) {
  const auto key = [](const std::array<uint32_t, 4>& words) { return (uint64_t{words[1]} << 32) | words[0]; };
  const auto iteration = static_cast<uint64_t>(where.step.data<double>()[step_value::iteration]);
  const uint64_t step = key(Philox(where.seed, Philox::stream_of("dropout")).block(iteration));
  return {key(Philox(step, 0).block(static_cast<uint64_t>(where.micro_batch))), where.site};
}

}  // namespace witan::kernels::cpu
