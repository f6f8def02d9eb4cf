// One transformer block: x + dropout(mixer(norm(x))), then x + dropout(MLP or MoE(norm(x))), with attention or another
// token mixer. With norms placed post (OLMo 2, arXiv:2501.00656, section 3.2): x + dropout(norm(mixer(x))), then
// x + dropout(norm(MLP or MoE(x))).
#pragma once

#include <memory>
#include <optional>

#include "witan/model/activation_statistics.h"
#include "witan/model/config.h"
#include "witan/model/unit.h"
#include "witan/moe/moe.h"
#include "witan/nn/mixer/token_mixer.h"

namespace witan {

// The residual stream, whose latest addition is left to the norm that reads it next: x + added
struct Residual {
  Var x, added;  // [.., D]; added may be undefined: nothing

  Var sum(Tape& tape) const;
};

// What earlier layers wrote beside the residual stream for this one; undefined: nothing.
struct BlockInputs {
  Var embedding;  // [B, S, D] that the residual stream began with
  Var skip;       // [B, S, D] that an earlier layer gave
  Var values;     // rows of a value embedding, as attention takes them
};

struct BlockOutput {
  Residual x;           // [B, S, D]
  RouterRecord router;  // empty in a dense block
};

// A part of a micro-batch on its way through blocks in lanes (model/lanes.h); S / n of its tokens are each of n ranks'.
struct Lane {
  Residual stream;    // [B, S / n, D]
  Var tokens = {};    // [B, S, D]: what heads or inner features are computed from, of all ranks' tokens
  Var summands = {};  // [B, S, D]: what they give, to be summed over the ranks
  Positions where = {};
};

class Block : public Module {
 public:
  Block(const Builder& builder, const ModelConfig& config, const LayerSpec& layer, const ModelAxes& axes);

  // x [B, S, D] of the tokens of `source`
  BlockOutput forward(Tape& tape, Residual x, const BlockInputs& beside, const Positions& where,
                      const TokenSource& source, Dropping dropping);

  // The same for a lane, in parts: those that exchange tokens over the tensor axis, with all that is done to a rank's
  // own tokens, and those between them. Of blocks whose mixer is a LaneMixer, without dropout; the MLP's parts of
  // dense ones. guard() lives from the first part to the last, and outlives no other block's.
  std::unique_ptr<UnitGuard> guard(Tape& tape) { return std::make_unique<UnitGuard>(tape, units_, unit_); }
  std::vector<Var> mixer_weights(Tape& tape);  // for all lanes; exchanges
  void gather_for_mixer(Tape& tape, Lane& lane);
  void mix(Tape& tape, Lane& lane, const std::vector<Var>& weights);
  void add_mixed(Tape& tape, Lane& lane);
  void gather_for_mlp(Tape& tape, Lane& lane);
  void apply_mlp(Tape& tape, Lane& lane);
  void add_mlp(Tape& tape, Lane& lane);
  // The MoE half of the block, which takes the residual stream x + added after the mixer; x [B, S / n, D], of all
  // lanes.
  BlockOutput apply_moe(Tape& tape, const Residual& x, const TokenSource& source, Dropping dropping);

  // x [1, T, D], tokens [1, T] int32
  Residual decode(Tape& tape, Residual x, const BlockInputs& beside, const Tensor& tokens, const Positions& where,
                  SequenceState* state);
  // The state that its mixer keeps of sequences; null where it has none.
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const;
  void attach(const ModelServices& services) override;
  TokenMixer* mixer() { return mixer_.get(); }  // null: the layer has none
  bool is_moe() const { return moe_.has_value(); }

 private:
  BlockOutput compute(Tape& tape, Residual x, const BlockInputs& beside, const Positions& where,
                      const TokenSource& source, Dropping dropping);
  // x + skip_scale skip, and then residual_scale x + embedding_scale embedding
  Residual joined(Tape& tape, Residual x, const BlockInputs& beside);
  MoeOutput moe_forward(Tape& tape, const Var& x, const TokenSource& source, Dropping dropping);
  Var mlp_forward(Tape& tape, const Var& x, const Randomness& randomness);
  // The residual stream, and what a part of the block reads of it.
  ops::SumAndNorm read(Tape& tape, Norm& norm, const Residual& in);
  // What a part of the block adds to the residual stream, from what it gives.
  Var added(Tape& tape, Norm& norm, Var y);
  // Of the tokens' rows of x + added, of which the latter may be undefined.
  void measure(Tape& tape, const TokenSource& source, Activation of, const Var& x, const Var& added = {});
  // Computes the block's second half from x + mixed, where the mixer adds `mixed`.
  BlockOutput feed_forward(Tape& tape, const Var& x, const Var& mixed, const TokenSource& source, Dropping dropping);

  LaneMixer& lanes() { return *mixer_->lanes(); }
  void gather(Tape& tape, Lane& lane, Norm& norm);

  bool recompute_all_;
  bool post_norm_;
  RecomputeModules recompute_;
  std::optional<TensorAxis> axis_;
  UnitAccess* units_ = nullptr;
  int unit_;
  ActivationAccess* activations_ = nullptr;
  int64_t number_ = 0;  // of the layer, for activations_
  Parameter *skip_scale_ = nullptr, *residual_scale_ = nullptr, *embedding_scale_ = nullptr;
  std::optional<Norm> mixer_norm_;  // none, and the next null: the layer has no mixer
  std::unique_ptr<TokenMixer> mixer_;
  Norm mlp_norm_;
  std::optional<Mlp> mlp_;
  std::optional<Moe> moe_;
  Dropout mixer_dropout_, mlp_dropout_;  // of what each adds to x
};

}  // namespace witan
