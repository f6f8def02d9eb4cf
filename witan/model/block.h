// One transformer block: x + dropout(mixer(norm(x))), then x + dropout(MLP or MoE(norm(x))), with attention or another
// token mixer. With norms placed post (OLMo 2, arXiv:2501.00656, section 3.2): x + dropout(norm(mixer(x))), then
// x + dropout(norm(MLP or MoE(x))). A block may have one of the two halves alone. The second half may have both an MLP
// and experts (Gemma 4): x + norm(norm(MLP(norm(x))) + norm(MoE(norm(x)))), whose router reads x. A block's output may
// be multiplied by a number. With parallel residual streams each half reads a sum of the streams, and writes to all of
// them (nn/hyper_connection.h). After both halves a block may add what it makes of an embedding of the token for its
// layer (model/per_layer_inputs.h).
#pragma once

#include <memory>
#include <optional>

#include "witan/autograd/recompute.h"
#include "witan/model/activation_statistics.h"
#include "witan/model/config.h"
#include "witan/model/per_layer_inputs.h"
#include "witan/model/unit.h"
#include "witan/moe/layer/moe.h"
#include "witan/nn/hyper_connection.h"
#include "witan/nn/mixer/token_mixer.h"

namespace witan {

// The residual stream, x + added. The norm that reads it next computes the latest addition.
struct Residual {
  Var x, added;  // [.., D]; added is undefined if there is nothing to add

  Var sum(Tape& tape) const;
};

// Inputs of a block beside the residual stream; undefined if the block does not read them.
struct BlockInputs {
  Var embedding;  // [B, S, D], the beginning of the residual stream
  Var skip;       // [B, S, D], the output of an earlier layer
  Var values;     // rows of a value embedding, as TokenMixer::forward() takes them
  Var own;        // [B, S, d], the tokens' embedding for this layer
};

struct BlockOutput {
  Residual x;           // [B, S, D]
  RouterRecord router;  // empty in a dense block
};

// The halves of a block, which add to the residual stream one after the other.
enum class Half : uint8_t { mixer, mlp };

// A part of a micro-batch that goes through blocks in lanes (model/lanes.h). Each of n ranks has S / n of its tokens.
struct Lane {
  Residual stream;    // [B, S / n, D]
  Var tokens = {};    // [B, S, D]: the input of a half, gathered from all ranks
  Var summands = {};  // [B, S, D]: the half's output, to be summed over the ranks
  Positions where = {};
};

class Block : public Module {
 public:
  Block(const Builder& builder, const ModelConfig& config, const LayerSpec& layer, const ModelAxes& axes);

  // x [B, S, D] of the tokens of `source` -> [B, S, D]
  BlockOutput forward(Tape& tape, Residual x, const BlockInputs& beside, const Positions& where,
                      const TokenSource& source, Dropping dropping);

  // A forward in lanes, cut where ranks of the tensor axis exchange tokens: gather() and add() exchange, and work on
  // the rank's own tokens; apply() computes. Only for blocks whose mixer is a LaneMixer, without dropout; Half::mlp
  // only for dense blocks. guard() lives from the first call to the last, and outlives no other block's.
  std::unique_ptr<UnitGuard> guard(Tape& tape) { return std::make_unique<UnitGuard>(tape, units_, unit_); }
  std::vector<Var> mixer_weights(Tape& tape);  // for both lanes; may exchange
  void gather(Tape& tape, Lane& lane, Half half);
  void apply(Tape& tape, Lane& lane, Half half, const std::vector<Var>& mixer_weights);
  void add(Tape& tape, Lane& lane, Half half);
  // The MoE half of the block, for both lanes together: takes the residual stream x + added after the mixer,
  // [B, S / n, D].
  BlockOutput apply_moe(Tape& tape, const Residual& x, const TokenSource& source, Dropping dropping);

  // x [1, T, D], tokens [1, T] int32
  Residual decode(Tape& tape, Residual x, const BlockInputs& beside, const Tensor& tokens, const Positions& where,
                  SequenceState* state);
  // The state that the block's mixer keeps of sequences; null if it keeps none.
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const;
  void attach(const ModelServices& services) override;
  TokenMixer* mixer() { return mixer_.get(); }  // null if the layer has none
  // The sharing of the mixer's keys and values with other layers, if there is any.
  const std::optional<KeySharing>& sharing() const { return sharing_; }
  bool is_moe() const { return moe_.has_value(); }

 private:
  BlockOutput compute(Tape& tape, Residual x, const BlockInputs& beside, const Positions& where,
                      const TokenSource& source, Dropping dropping);
  // x + skip_scale skip, then residual_scale x + embedding_scale embedding; each only if the layer has it.
  Residual joined(Tape& tape, Residual x, const BlockInputs& beside);
  // x [B, S, D] of experts; the router reads `routed`, or x if it is undefined.
  MoeOutput moe_forward(Tape& tape, const Var& x, const Var& routed, const TokenSource& source, Dropping dropping);
  // The experts' and the MLP's normalised outputs together: input is what the MLP reads, x the residual stream.
  MoeOutput parallel_forward(Tape& tape, const Var& x, const Var& input, const TokenSource& source, Dropping dropping);
  Var mlp_forward(Tape& tape, const Var& x, const Randomness& randomness);
  struct HalfInput {
    Var x;      // the residual stream
    Var input;  // of the half: the norm of x or of a sum of its streams, unless norms are placed post
    Var mix;    // how the half writes to parallel streams; undefined: there is one
  };
  HalfInput read(Tape& tape, Half half, const Residual& in);
  // The residual stream after a half, of which `more` is the addition.
  Residual write(Tape& tape, const HalfInput& half, Var more);
  // The addition to the residual stream for the output y of a half: y, or its norm if norms are placed post or both,
  // times residual_multiplier.
  Var added(Tape& tape, Half half, Var y);
  // The residual stream x after the halves, with what the layer makes of its embedding `own`, if it has one.
  Residual with_own(Tape& tape, Residual x, const Var& own, const Randomness& randomness);
  // Measures x + added, where `added` may be undefined, for the statistics of activations.
  void measure(Tape& tape, const TokenSource& source, Activation of, const Var& x, const Var& added = {});
  // The block's output x, times the layer's number if it has one.
  Residual scaled(Tape& tape, Residual x);
  // The MLP or MoE half, if the block has it, on the residual stream after the mixer.
  BlockOutput feed_forward(Tape& tape, const Residual& in, const Var& own, const TokenSource& source,
                           Dropping dropping);

  LaneMixer& lanes() { return *mixer_->lanes(); }

  // The norms of a half; of its input, its output or both.
  struct HalfNorms {
    std::optional<Norm> input, output;
  };
  HalfNorms& norms_of(Half half) { return half == Half::mixer ? mixer_norms_ : mlp_norms_; }
  std::optional<HyperConnection>& streams_of(Half half) { return half == Half::mixer ? mixer_streams_ : mlp_streams_; }

  std::optional<KeySharing> sharing_;  // of keys and values, between the mixer and those of other layers
  bool recompute_all_;
  Offload offload_;  // of the block's input, if it is recomputed
  double residual_multiplier_;
  RecomputeModules recompute_;
  std::optional<TensorAxis> axis_;
  UnitAccess* units_ = nullptr;
  int unit_;
  ActivationAccess* activations_ = nullptr;
  int64_t number_ = 0;  // the layer's, for activations_
  Parameter *skip_scale_ = nullptr, *residual_scale_ = nullptr, *embedding_scale_ = nullptr;
  Buffer* layer_scalar_ = nullptr;     // [1] of the model's dtype; null: outputs are not multiplied
  std::unique_ptr<TokenMixer> mixer_;  // null if the layer has none
  HalfNorms mixer_norms_, mlp_norms_;  // a half that the layer lacks has none
  std::optional<HyperConnection> mixer_streams_, mlp_streams_;  // none: the residual stream is a single one
  std::optional<Mlp> mlp_;
  std::optional<Moe> moe_;
  std::optional<Norm> mlp_out_norm_, moe_norm_, moe_out_norm_;  // of an MLP and experts side by side
  std::optional<PerLayerGate> own_gate_;                        // none: the layer has no embedding of its own
  Dropout mixer_dropout_, mlp_dropout_;                         // of the halves' additions to the residual stream
};

}  // namespace witan
