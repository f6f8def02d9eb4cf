#include "witan/nn/dropout.h"

#include "witan/base/rng.h"
#include "witan/ops/dropout.h"

namespace witan {

Dropout::Dropout(const Builder& builder, double p) : p_(p), site_(Philox::stream_of(builder.path)) {
  if (builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard)
    divides_tokens_.emplace(*builder.tensor);
}

kernels::DroppedPart part_of(const Randomness& randomness, int64_t positions, int64_t token_elements,
                             const TensorAxis* divides_tokens) {
  const int64_t ranks = divides_tokens ? divides_tokens->group.size() : 1;
  const int64_t here = divides_tokens ? divides_tokens->group.rank() * positions : 0;
  const int64_t whole = randomness.sequence_length > 0 ? randomness.sequence_length : ranks * positions;
  if (whole <= positions) return {};
  return {positions * token_elements, whole * token_elements,
          randomness.positions.from(here).of_elements(token_elements)};
}

Var Dropout::forward(Tape& tape, const Var& x, const Randomness& randomness) const {
  kernels::Dropout how = drawn_from(randomness);
  if (how.on() && (divides_tokens_ || randomness.sequence_length > 0)) {  // x [B, S, D]
    const int64_t own = x.size(1);
    how.part = part_of(randomness, own, x.shape().elements() / (x.size(0) * own),
                       divides_tokens_ ? &*divides_tokens_ : nullptr);
  }
  return ops::dropout(tape, x, how);
}

kernels::Dropout Dropout::drawn_from(const Randomness& randomness) const {
  if (p_ == 0 || !randomness.step.defined()) return {};
  return {p_, randomness.seed, randomness.step, randomness.micro_batch, site_};
}

}  // namespace witan
