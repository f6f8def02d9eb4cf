// Dropout for tests: an active instance, and its mask computed from the generator by the definition in
// kernels/pointwise/dropout.h.
#pragma once

#include "support/rank.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::testing {

inline kernels::Dropout dropout_of(Rank& rank, double p, int64_t iteration = 7, int64_t micro_batch = 3) {
  std::vector<double> step(kernels::kStepValues);
  step[kernels::step_value::iteration] = static_cast<double>(iteration);
  return {.p = p,
          .seed = 42,
          .step = rank.tensor<double>({kernels::kStepValues}, step),
          .micro_batch = micro_batch,
          .site = Philox::stream_of("here")};
}

// The factor of element `e`.
inline double factor_of(const kernels::Dropout& how, int64_t e) {
  if (!how.on()) return 1;
  const auto key = [](const std::array<uint32_t, 4>& words) { return words[0] + (uint64_t{words[1]} << 32); };
  const auto iteration = static_cast<uint64_t>(how.step.data<double>()[kernels::step_value::iteration]);
  const uint64_t step = key(Philox(how.seed, Philox::stream_of("dropout")).block(iteration));
  const uint64_t batch = key(Philox(step, 0).block(static_cast<uint64_t>(how.micro_batch)));
  return Philox(batch, how.site).uniform(static_cast<uint64_t>(e)) < how.p ? 0 : 1 / (1 - how.p);
}

}  // namespace witan::testing
