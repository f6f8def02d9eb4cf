#include "witan/nn/dropout.h"

#include "witan/base/rng.h"
#include "witan/ops/dropout.h"

namespace witan {

Dropout::Dropout(const Builder& builder, double p) : p_(p), site_(Philox::stream_of(builder.path)) {}

Var Dropout::forward(Tape& tape, const Var& x, const Randomness& randomness) const {
  return ops::dropout(tape, x, drawn_from(randomness));
}

kernels::Dropout Dropout::drawn_from(const Randomness& randomness) const {
  if (p_ == 0 || !randomness.step.defined()) return {};
  return {p_, randomness.seed, randomness.step, randomness.micro_batch, site_};
}

}  // namespace witan
