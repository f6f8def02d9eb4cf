// The part of a layer that lets tokens see earlier tokens of their sequence: attention, a recurrence, a convolution. A
// layer's MixerSpec (nn/mixer/mixer_spec.h) makes its mixer, and answers what can be known without building one.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/attention/rope.h"
#include "witan/nn/layers.h"
#include "witan/nn/mixer/sequence_state.h"
#include "witan/nn/module.h"

namespace witan {

class ClippedLogits;  // nn/attention/attention.h

// The sines and cosines of a micro-batch's positions, for the layers that rotate by these arguments.
struct RotaryTable {
  kernels::RopeArgs rope;
  Tensor angles;  // kernels::rotary_table, [B S, rope.dims]
};

// The keys that tokens attend to by the choice of a layer's indexer (kernels/attention/sparse_attention.h), for later
// layers of the same pass that use it.
struct ChosenKeys {
  std::map<int64_t, Tensor> of_layer;  // by the layer's number: [B S, K] int32
};

// The keys and values of layers that lend them to later layers of the same pass (KeySharing).
struct LentHeads {
  struct Heads {
    Var keys, values;  // [B, S, G, hd], [B, S, G, hd_v] of this rank, normalised and rotated
  };
  std::map<int64_t, Heads> of_layer;  // by the layer's number
};

// The positions of a micro-batch's tokens, or of those of a generation step, in their sequences, with tensors that are
// computed from them once for all layers.
struct Positions {
  Tensor positions;                      // [B, S] int32
  Tensor sequence_ids;                   // [B, S] int32: a token sees earlier tokens of the same id; or undefined
  std::vector<RotaryTable> tables = {};  // shared by all layers; a layer computes a table that is missing here
  kernels::AttentionHints hints = {};
  Tensor whole_ids = {};  // [B, n S]: sequence_ids of whole sequences, if n ranks divide them and exchange channels
  kernels::CacheTokens cached = {};         // in a generation step: the rows of the states that the tokens belong to
  std::shared_ptr<ChosenKeys> chosen = {};  // null if no layer uses another one's choice
  std::shared_ptr<LentHeads> lent = {};     // null if no layer lends keys and values
};

// The angles [B S, rope.dims] of positions [B, S], from `where` or computed; undefined if rope.dims is 0.
Tensor rotary_angles(Stream& stream, const Positions& where, const kernels::RopeArgs& rope, DType dtype);

// A mixer that can do its work without its exchanges over the tensor axis, so that model/lanes.h overlaps the two.
class LaneMixer {
 public:
  virtual ~LaneMixer() = default;
  // The weights of the projections, for both lanes. A collective if ranks share them, forward and backward.
  virtual std::vector<Var> projection_weights(Tape& tape) = 0;
  // x [B, S, D] of all ranks' tokens -> this rank's summands [B, S, D], which total() adds up into the residual stream.
  // `weights`: the result of projection_weights().
  virtual Var summands(Tape& tape, const Var& x, const Positions& where, const std::vector<Var>& weights,
                       const Randomness& randomness = {}, const Var& embedded = {}) = 0;
  virtual Var total(Tape& tape, Var y) = 0;
};

class TokenMixer : public Module {
 public:
  using Module::Module;

  // x [B, S, D] of the residual stream -> [B, S, D]; if sequences are sharded, of the tokens at this rank's
  // context_positions(). Tokens of different where.sequence_ids do not see each other, whatever state a kind keeps:
  // packing documents changes none of them. embedded [B, S, G hd_v / n]: the tokens' rows of the value embedding, of
  // all tokens of a sequence if tensor-parallel ranks divide them; undefined if the layer has none.
  virtual Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
                      const Var& embedded = {}) = 0;

  // x [1, T, D]: the next tokens of the sequences that where.cached names, whose earlier tokens are in the state's
  // rows; tokens at position 0 begin a new sequence. Results are those of the forward of the whole sequence. Steps of
  // one token for each sequence may be captured as a graph, so kernels must read positions and rows on the device. The
  // tape is off. `state`: of this mixer's make_state(), or of the layer's that lends its keys to this one. Throws
  // ShapeError when a sequence outgrows it.
  virtual Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                     const Var& embedded = {}) = 0;
  // An empty state of this layer for decode(); null if it borrows another layer's.
  virtual std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const = 0;

  // Interfaces that only some kinds implement; null if this one does not.
  virtual LaneMixer* lanes() { return nullptr; }
  virtual ClippedLogits* clipped_logits() { return nullptr; }
};

}  // namespace witan
