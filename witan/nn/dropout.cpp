#include "witan/nn/dropout.h"

#include <algorithm>

#include "witan/base/numbers/rng.h"
#include "witan/ops/pointwise/dropout.h"

namespace witan {

Dropout::Dropout(const Builder& builder, double p) : p_(p), site_(Philox::stream_of(builder.path)) {
  if (builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard)
    divides_tokens_.emplace(*builder.tensor);
}

kernels::DroppedPart part_of(const Randomness& randomness, int64_t positions, int64_t token_elements,
                             const TensorAxis* divides_tokens) {
  const int64_t ranks = divides_tokens ? divides_tokens->group.size() : 1;
  const int64_t here = divides_tokens ? divides_tokens->group.rank() * positions : 0;
  const int64_t whole = std::max(randomness.sequence_length > 0 ? randomness.sequence_length : ranks * positions,
                                 randomness.counted_positions);
  if (whole <= positions) return {};
  return {positions * token_elements, whole * token_elements,
          randomness.positions.from(here).of_elements(token_elements)};
}

Var Dropout::forward(Tape& tape, const Var& x, const Randomness& randomness) const {
  kernels::Dropout how = drawn_from(randomness);
  const bool part = divides_tokens_ || randomness.sequence_length > 0 || randomness.counted_positions > 0;
  if (how.on() && part) {  // x [B, S, D]
    const int64_t own = x.size(1), of_token = x.shape().elements() / (x.size(0) * own);
    Randomness here = randomness;
    if (own * of_token % 4 != 0) here.counted_positions = 0;  // a row is not made of whole blocks of Philox's words
    how.part = part_of(here, own, of_token, divides_tokens_ ? &*divides_tokens_ : nullptr);
  }
  return ops::dropout(tape, x, how);
}

kernels::Dropout Dropout::drawn_from(const Randomness& randomness) const {
  if (p_ == 0 || !randomness.step.defined()) return {};
  return {p_, randomness.seed, randomness.step, randomness.micro_batch, site_};
}

}  // namespace witan
