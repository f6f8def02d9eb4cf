// Where a model drops out, and what its masks are drawn from.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/pointwise/dropout.h"
#include "witan/nn/module.h"

namespace witan {

// What all masks of one micro-batch have in common. Without a step nothing is dropped: evaluation, generation.
struct Randomness {
  uint64_t seed = 0;
  Tensor step = {};         // StepState's, float64 [kStepValues]
  int64_t micro_batch = 0;  // its number in the global batch, whoever runs it
  // The positions of the tokens that are here, of so many. 0: those of a whole sequence.
  kernels::PositionRuns positions = {};
  int64_t sequence_length = 0;
  // Draws number a row's positions as if it had at least so many, which padded micro-batches set to kCountedPositions:
  // a token then draws the same however far its row is padded. 0: rows have their own length.
  int64_t counted_positions = 0;
};
inline constexpr int64_t kCountedPositions = int64_t{1} << 24;

// Which part of a tensor [B, S, ..] of the residual stream is here, of so many elements a token: of all positions of
// its B sequences, some of which other context-parallel ranks may hold and, where there is an axis that divides tokens,
// its ranks.
kernels::DroppedPart part_of(const Randomness& randomness, int64_t positions, int64_t token_elements,
                             const TensorAxis* divides_tokens);

// One place that drops. Its name sets it apart from all others, as a parameter's does.
class Dropout {
 public:
  Dropout(const Builder& builder, double p);

  // x [B, S, D] of the residual stream; the mask is that of all tokens, whichever of them this rank has. p = 0 or a
  // randomness without a step: x itself
  Var forward(Tape& tape, const Var& x, const Randomness& randomness) const;
  // For ops that drop inside, and know where their tokens stand.
  kernels::Dropout drawn_from(const Randomness& randomness) const;

 private:
  double p_;
  uint64_t site_;
  std::optional<TensorAxis> divides_tokens_;  // none: every rank has all of them
};

}  // namespace witan
