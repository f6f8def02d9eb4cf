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
  if (how.on() && (divides_tokens_ || randomness.sequence_length > 0)) {  // x [B, S, D]
    const int64_t own = x.size(1), ranks = divides_tokens_ ? divides_tokens_->group.size() : 1;
    const int64_t here = divides_tokens_ ? divides_tokens_->group.rank() * own : 0,
                  token = x.shape().elements() / (x.size(0) * own);
    const int64_t whole = randomness.sequence_length > 0 ? randomness.sequence_length : ranks * own;
    if (whole > own) how.part = {own * token, whole * token, randomness.positions.from(here).of_elements(token)};
  }
  return ops::dropout(tape, x, how);
}

kernels::Dropout Dropout::drawn_from(const Randomness& randomness) const {
  if (p_ == 0 || !randomness.step.defined()) return {};
  return {p_, randomness.seed, randomness.step, randomness.micro_batch, site_};
}

}  // namespace witan
