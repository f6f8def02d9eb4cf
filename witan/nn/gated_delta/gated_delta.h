// A layer of Gated DeltaNet (Yang, Kautz & Hatamizadeh, 2024, arXiv:2412.06464), as in Qwen3-Next and Qwen3.5: queries,
// keys and values pass a short causal convolution with SiLU, then the gated delta rule; its output is normalised, head
// by head, and gated.
//
//   [q k v] = silu(conv([W_q W_k W_v] x)),  z = W_z x,  β = sigmoid(W_b x),  g = -exp(A_log) softplus(W_a x + dt_bias)
//   o = gated_delta_rule(q, k, v, g, β),    y = W_o (rmsnorm(o) norm.weight silu(z))
//
// OLMo Hybrid doubles β (negative_eigenvalues). Kimi Delta Attention (Kimi Team, "Kimi Linear", 2025, arXiv:2510.26692)
// has a decay for each channel of a key and a sigmoid for a gate (channel_decays):
//   g = -exp(A_log) softplus(W_fb W_fa x + dt_bias),  z = W_gb W_ga x,  y = W_o (rmsnorm(o) norm.weight sigmoid(z))
//
// Parameters, with G heads of queries and keys and H of values: q_proj, k_proj [G dk, D], v_proj, z_proj [H dv, D],
// b_proj, a_proj [H, D], q_conv.weight, k_conv.weight [G dk, W], v_conv.weight [H dv, W], A_log, dt_bias [H],
// norm.weight [dv], o_proj [D, H dv]; with channel_decays f_a_proj [dk, D], f_b_proj [H dk, dk], g_a_proj [dv, D] and
// g_b_proj [H dv, dv] instead of a_proj and z_proj, and dt_bias [H dk]. Projections have no biases. A_log, dt_bias and,
// without channel_decays, norm.weight have the accumulator dtype, as in the checkpoints of Qwen3.5: in 16 bits a decay
// over many tokens would be another one. The tensor axis divides heads; ranks that divide sequences exchange them for
// convolution and rule (nn/mixer/whole_sequences.h).
#pragma once

#include <memory>
#include <optional>

#include "witan/nn/gated_delta/gated_delta_spec.h"
#include "witan/nn/linear.h"
#include "witan/nn/mixer/recurrent_parts.h"
#include "witan/nn/mixer/token_mixer.h"
#include "witan/ops/linear_attention/gated_delta.h"

namespace witan {

// The state of each head after a sequence's last token, or before its last chunk if that is kept too, and the last
// inputs of its convolution.
class DeltaState : public SequenceState {
 public:
  // `heads`: of this rank; `decays`: their number for a token, in all of these heads
  DeltaState(Stream& stream, const StateSize& size, const kernels::DeltaHeads& heads, int64_t decays, int64_t taps,
             DType dtype);

  int64_t bytes() const override;
  // A state cannot be cut.
  int64_t resumable(int64_t wanted, int64_t held, int64_t /*reach*/) const override {
    return wanted == held ? wanted : 0;
  }
  void copy_row(Stream& stream, int64_t from, int64_t to) override;

  const Tensor states;              // [R, H, dk, dv], accumulator dtype
  const Tensor tails;               // [R, W - 1, 2 G dk + H dv]
  const kernels::DeltaChunk chunk;  // undefined unless StateSize::chunks

 private:
  std::vector<Tensor> kept() const;
};

class GatedDelta : public TokenMixer {
 public:
  GatedDelta(const Builder& builder, const GatedDeltaSpec& spec, const MixerModel& model, const ContextAxis& context);

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
              const Var& embedded = {}) override;
  // Has the bits of the forward if the state keeps chunks. Otherwise later tokens than those that begin a sequence are
  // computed by the recurrence, which agrees with it to roundings.
  Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state, const Var& embedded = {}) override;
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const override;

 private:
  // x [B, S, D] -> queries, keys and values side by side, before their convolution, [B, S, 2 G dk + H dv].
  Var project(Tape& tape, const Var& x, const Randomness& randomness);
  // x of the residual stream, tokens [B, S, D] -> [B, S, H], of this rank's heads of whole sequences
  ops::DeltaGates gates(Tape& tape, const Var& x, const Var& tokens, const Randomness& randomness);
  // o [B, S, H dv] of the rule -> the residual stream
  Var output(Tape& tape, const Var& x, const Var& tokens, const Var& o, const Randomness& randomness);
  // x of the residual stream -> [B, S, H d] of this rank's heads, through the d channels of `down`
  Var through(Tape& tape, const Var& x, Linear& down, Linear& up, const Randomness& randomness);

  std::optional<TensorAxis> axis_;
  WholeSequences whole_;
  kernels::DeltaHeads heads_;  // of this rank's tokens
  kernels::DeltaHeads own_;    // those whose rule it computes, for all tokens
  int64_t taps_;               // W
  double strongest_;           // the bound of β
  double epsilon_;             // of the norm
  int64_t decays_;             // of a head in a token: 1 or dk
  Tensor projections_;         // [2 G dk + H dv, D]: the weights of q, k and v
  Linear q_proj_, k_proj_, v_proj_, b_proj_, o_proj_;
  std::optional<Linear> z_proj_, a_proj_;                            // without decays of channels
  std::optional<Linear> f_a_proj_, f_b_proj_, g_a_proj_, g_b_proj_;  // with them
  ShortConvolutions convolutions_;                                   // of q, k and v
  Parameter *A_log_ = nullptr, *dt_bias_ = nullptr, *norm_ = nullptr;
};

}  // namespace witan
