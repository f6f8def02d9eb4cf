// Mamba-2 as a kind of token mixer (nn/mamba2/mamba2.h): its sizes, and how ranks divide it.
#pragma once

#include "witan/kernels/state_space/ssd.h"
#include "witan/nn/mixer/mixer_kind.h"

namespace witan {

struct Mamba2Spec : public MixerKind {
  int64_t num_heads = 0;        // H
  int64_t num_groups = 0;       // G, which divides H
  int64_t head_dim = 0;         // P
  int64_t state_dim = 0;        // N
  int64_t conv_kernel_dim = 0;  // W, taps of the convolution, at least 2
  bool conv_bias = true;
  double least_step = 0;

  kernels::SsdHeads heads() const { return {num_heads, num_groups, head_dim, state_dim}; }

  std::string describe() const override { return "Mamba-2"; }
  const char* name() const override { return "mamba2"; }
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& model) const override;
  double mixing_flops(int64_t seq_length) const override;
  double decoding_flops(int64_t position) const override;
  // Matrices, and 3.5 multiply-adds for each number of the state.
  double megatron_weights(const MixerModel& model, int64_t seq_length) const override;
  double kept_channels() const override;
  // A state of each head, the last inputs of the convolution, and those of a chunk with StateSize::chunks; the same for
  // a sequence of any length.
  StateBytes state_bytes(const StateSize& size, DType dtype) const override;

  DividedSizes tensor_sizes() const override {
    return {{"mamba_num_groups", num_groups}, {"mamba_num_heads", num_heads}};
  }
  std::string_view key_against_lanes() const override { return "experimental_attention_variant"; }
  ContextUse context_use(ContextExchange exchange, int64_t tensor, int64_t context) const override;
  std::string context_refusal(ContextExchange exchange, int64_t tensor, int64_t context) const override;
};

}  // namespace witan
