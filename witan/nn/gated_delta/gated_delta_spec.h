// Gated DeltaNet as a kind of token mixer (nn/gated_delta/gated_delta.h): its sizes, and how ranks divide it.
#pragma once

#include "witan/kernels/linear_attention/gated_delta.h"
#include "witan/nn/mixer/mixer_kind.h"

namespace witan {

struct GatedDeltaSpec : public MixerKind {
  int64_t num_key_heads = 0;    // G, of queries and of keys
  int64_t num_value_heads = 0;  // H, a multiple of G
  int64_t key_head_dim = 0;     // dk
  int64_t value_head_dim = 0;   // dv
  int64_t conv_kernel_dim = 0;  // W, taps of the convolution, at least 2
  // β is between 0 and 2 instead of 0 and 1, so that the state's transition may have negative eigenvalues
  // (Grazzi et al., 2024, arXiv:2411.12537).
  bool negative_eigenvalues = false;
  double norm_epsilon = 0;  // of the norm of the output; 0: the model's
  // Kimi Delta Attention: each channel of a key has its own decay, and the output's gate is a sigmoid; both are made by
  // two matrices through as many channels as a head has.
  bool channel_decays = false;

  kernels::DeltaHeads heads() const { return {num_key_heads, num_value_heads, key_head_dim, value_head_dim}; }

  std::string describe() const override { return layers(); }
  const char* name() const override { return "gated_delta"; }
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& model) const override;
  double mixing_flops(int64_t seq_length) const override;
  double decoding_flops(int64_t position) const override;
  double kept_channels() const override;
  // A state of each head, the last inputs of the convolution, and those of a chunk with StateSize::chunks; the same for
  // a sequence of any length.
  StateBytes state_bytes(const StateSize& size, DType dtype) const override;

  DividedSizes tensor_sizes() const override {
    return {{"linear_num_key_heads", num_key_heads}, {"linear_num_value_heads", num_value_heads}};
  }
  std::string_view key_against_lanes() const override { return "experimental_attention_variant"; }
  ContextUse context_use(ContextExchange exchange, int64_t tensor, int64_t context) const override;
  std::string context_refusal(ContextExchange exchange, int64_t tensor, int64_t context) const override;

  const char* layers() const { return channel_decays ? "Kimi Delta Attention" : "Gated DeltaNet"; }
  int64_t decays() const { return channel_decays ? num_value_heads * key_head_dim : num_value_heads; }  // of a token
};

}  // namespace witan
