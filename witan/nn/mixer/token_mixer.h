// The part of a layer that lets tokens see earlier tokens of their sequence: attention, a recurrence, a convolution.
// Kinds are siblings of this interface. A layer's MixerSpec (nn/mixer/mixer_spec.h) makes its mixer, and answers what
// can be known without one.
#pragma once

#include <memory>
#include <vector>

#include "witan/nn/dropout.h"
#include "witan/nn/mixer/positions.h"
#include "witan/nn/mixer/sequence_state.h"
#include "witan/nn/module.h"

namespace witan {

class ClippedLogits;  // nn/attention/clipped_logits.h

// A mixer whose exchanges of tokens over the tensor axis stand apart from its work, which model/lanes.h overlaps with
// them.
class LaneMixer {
 public:
  virtual ~LaneMixer() = default;
  // The weights of the projections, for all lanes. A collective where ranks share them, forward and backward.
  virtual std::vector<Var> projection_weights(Tape& tape) = 0;
  // x [B, S, D] of all ranks' tokens -> this rank's summands [B, S, D], of which total() makes their sum in the
  // residual stream. `weights`: as projection_weights() gave them.
  virtual Var summands(Tape& tape, const Var& x, const Positions& where, const std::vector<Var>& weights,
                       const Randomness& randomness = {}, const Var& embedded = {}) = 0;
  virtual Var total(Tape& tape, Var y) = 0;
};

class TokenMixer : public Module {
 public:
  using Module::Module;

  // x [B, S, D] of the residual stream -> the same; where sequences are sharded, of the tokens at this rank's
  // context_positions(). Tokens of other where.sequence_ids do not see each other, in whatever state a kind keeps:
  // packing documents changes none of them. embedded [B, S, G hd_v / n]: the tokens' rows of a value embedding, of all
  // of a sequence where tensor-parallel ranks divide it; undefined where the layer has none.
  virtual Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
                      const Var& embedded = {}) = 0;

  // x [1, T, D]: the next tokens of the sequences that where.cached names, whose earlier ones are in the state's rows;
  // a sequence that begins at position 0 begins anew. Results are those of the forward of the whole sequence. Steps of
  // one token for each sequence may be captured as a graph, so that kernels read their positions and rows on the
  // device. Tape off. `state`: of this mixer's make_state(). Throws ShapeError when a sequence outgrows it.
  virtual Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                     const Var& embedded = {}) = 0;
  // An empty state for decode(), of this layer alone.
  virtual std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const = 0;

  // Interfaces that only some kinds implement; null: this one does not.
  virtual LaneMixer* lanes() { return nullptr; }
  virtual ClippedLogits* clipped_logits() { return nullptr; }
};

}  // namespace witan
