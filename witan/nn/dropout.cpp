#include "witan/nn/dropout.h"

#include "witan/base/rng.h"
#include "witan/ops/dropout.h"

namespace witan {

Dropout::Dropout(const Builder& builder, double p) : p_(p), site_(Philox::stream_of(builder.path)) {
  if (builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard)
    divides_tokens_.emplace(*builder.tensor);
}

Var Dropout::forward(Tape& tape, const Var& x, const Randomness& randomness) const {
  kernels::Dropout how = drawn_from(randomness);
  if (divides_tokens_ && how.on()) {  // x [B, S/n, D]
    const Group& group = divides_tokens_->group;
    how.run = x.size(1) * x.size(2);
    how.first = group.rank() * how.run;
    how.distance = group.size() * how.run;
  }
  return ops::dropout(tape, x, how);
}

kernels::Dropout Dropout::drawn_from(const Randomness& randomness) const {
  if (p_ == 0 || !randomness.step.defined()) return {};
  return {p_, randomness.seed, randomness.step, randomness.micro_batch, site_};
}

}  // namespace witan
