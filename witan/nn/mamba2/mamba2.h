// A layer of Mamba-2 (Dao & Gu, "Transformers are SSMs", 2024, arXiv:2405.21060), as in Nemotron-H: x, B and C pass a
// short causal convolution with SiLU, then the recurrence; its output is gated, and normalised in groups of channels.
//
//   [x B C] = silu(conv([W_x W_B W_C] u)),  z = W_z u,  dt = max(softplus(W_dt u + dt_bias), least),  a = -exp(A_log)
//   dt y = ssd(x, B, C, dt, a, D),             o = W_o (rmsnorm_in_groups(y silu(z)) norm.weight)
//
// Parameters, with H heads of P channels, G groups and a state of N: z_proj, x_proj [H P, D], B_proj, C_proj [G N, D],
// dt_proj [H, D], x_conv.weight [H P, W], B_conv.weight, C_conv.weight [G N, W], with conv_bias also the convolutions'
// .bias, A_log, D, dt_bias [H], norm.weight [H P], o_proj [D, H P]. Projections have no biases. A_log, D, dt_bias and
// norm.weight have the accumulator dtype: in 16 bits a decay over many tokens would be another one. The tensor axis
// divides groups, and with them heads; ranks that divide sequences exchange heads for convolution and recurrence
// (nn/mixer/whole_sequences.h).
#pragma once

#include <memory>
#include <optional>

#include "witan/nn/mamba2/mamba2_spec.h"
#include "witan/nn/mixer/recurrent_parts.h"
#include "witan/nn/mixer/token_mixer.h"
#include "witan/ops/state_space/ssd.h"

namespace witan {

// The state of each head after a sequence's last token, or before its last chunk if that is kept too, and the last
// inputs of its convolution.
class SsdState : public SequenceState {
 public:
  // `heads`: of this rank
  SsdState(Stream& stream, const StateSize& size, const kernels::SsdHeads& heads, int64_t taps, DType dtype);

  int64_t bytes() const override;
  // A state cannot be cut.
  int64_t resumable(int64_t wanted, int64_t held, int64_t /*reach*/) const override {
    return wanted == held ? wanted : 0;
  }
  void copy_row(Stream& stream, int64_t from, int64_t to) override;

  const Tensor states;            // [R, H, N, P], accumulator dtype
  const Tensor tails;             // [R, W - 1, H P + 2 G N]
  const kernels::SsdChunk chunk;  // undefined unless StateSize::chunks

 private:
  std::vector<Tensor> kept() const;
};

class Mamba2 : public TokenMixer {
 public:
  Mamba2(const Builder& builder, const Mamba2Spec& spec, const MixerModel& model, const ContextAxis& context);

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
              const Var& embedded = {}) override;
  // Has the bits of the forward if the state keeps chunks. Otherwise later tokens than those that begin a sequence are
  // computed by the recurrence, which agrees with it to roundings.
  Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state, const Var& embedded = {}) override;
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const override;

 private:
  // u [B, S, D] -> x, B and C side by side, before their convolution, [B, S, H P + 2 G N].
  Var project(Tape& tape, const Var& u, const Randomness& randomness);
  // u [B, S, D] -> [B, S, H], of this rank's heads of whole sequences
  ops::SsdGates gates(Tape& tape, const Var& u, const Randomness& randomness);
  // y [B, S, H P] of the recurrence -> the residual stream
  Var output(Tape& tape, const Var& u, const Var& y, const Randomness& randomness);

  std::optional<TensorAxis> axis_;
  WholeSequences whole_;
  kernels::SsdHeads heads_;  // of this rank's tokens
  kernels::SsdHeads own_;    // those whose recurrence it computes, for all tokens
  int64_t taps_;             // W
  double least_step_, epsilon_;
  Tensor projections_;  // [H P + 2 G N, D]: the weights of x, B and C
  Linear x_proj_, B_proj_, C_proj_, z_proj_, dt_proj_, o_proj_;
  ShortConvolutions convolutions_;  // of x, B and C
  Parameter *A_log_ = nullptr, *D_ = nullptr, *dt_bias_ = nullptr, *norm_ = nullptr;
};

}  // namespace witan
