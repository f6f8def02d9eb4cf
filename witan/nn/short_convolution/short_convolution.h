// A gated short convolution, the layers of LFM2 beside attention (Liquid AI, "LFM2 Technical Report", 2025,
// arXiv:2511.23404): a causal convolution of a few taps between two gates that depend on the token.
//
//   b = W_B x,  c = W_C x,  u = W_x x,   y = W_o (c conv(b u))
//
// Parameters, with C channels, as many as the residual stream has: B_proj, C_proj, x_proj [C, D], conv.weight [C, W],
// o_proj [D, C], and, where the spec says so, biases of all of them. The tensor axis divides channels. Ranks that
// divide sequences are sent the last tokens before their chunks (comm/earlier_tokens.h).
#pragma once

#include <memory>
#include <optional>

#include "witan/nn/axes.h"
#include "witan/nn/linear.h"
#include "witan/nn/mixer/token_mixer.h"
#include "witan/nn/short_convolution/short_convolution_spec.h"

namespace witan {

// The last inputs of a sequence's convolution.
class ConvolutionState : public SequenceState {
 public:
  // `channels`: of this rank
  ConvolutionState(Stream& stream, int64_t rows, int64_t channels, int64_t taps, DType dtype);

  int64_t bytes() const override { return tails.bytes(); }
  // Inputs before the last ones are gone.
  int64_t resumable(int64_t wanted, int64_t held, int64_t /*reach*/) const override {
    return wanted == held ? wanted : 0;
  }
  void copy_row(Stream& stream, int64_t from, int64_t to) override;

  const Tensor tails;  // [R, W - 1, C]
};

class ShortConvolution : public TokenMixer {
 public:
  ShortConvolution(const Builder& builder, const ShortConvolutionSpec& spec, const MixerModel& model,
                   const ContextAxis& context);

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
              const Var& embedded = {}) override;
  Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state, const Var& embedded = {}) override;
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const override;

 private:
  // x [B, S, D] -> both gates and u side by side, [B, S, 3 C].
  Var project(Tape& tape, const Var& x, const Randomness& randomness);

  std::optional<TensorAxis> axis_;
  ContextAxis context_;
  int64_t channels_;    // C of this rank
  int64_t taps_;        // W
  Tensor projections_;  // [3 C, D]: the weights of B, C and x
  Linear B_proj_, C_proj_, x_proj_, o_proj_;
  Parameter *filter_ = nullptr, *bias_ = nullptr;
};

}  // namespace witan
