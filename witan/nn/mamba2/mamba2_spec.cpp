#include "witan/nn/mamba2/mamba2_spec.h"

#include <algorithm>

#include "witan/nn/lora.h"
#include "witan/nn/mamba2/mamba2.h"

namespace witan {

std::unique_ptr<TokenMixer> Mamba2Spec::make(const Builder& builder, const MixerModel& model,
                                             const ContextAxis& context) const {
  return std::make_unique<Mamba2>(builder, *this, model, context);
}

MixerCounts Mamba2Spec::parameters(const MixerModel& model) const {
  const kernels::SsdHeads sizes = heads();
  const int64_t D = model.width, inner = sizes.inner(), of_groups = sizes.of_groups();
  MixerCounts counts{.weights = D * (2 * inner + sizes.channels() + num_heads),
                     .vectors = sizes.channels() * (conv_kernel_dim + (conv_bias ? 1 : 0)) + 3 * num_heads + inner};
  if (!model.lora) return counts;
  const auto add = [&](const char* matrix, int64_t in, int64_t out) {
    if (model.lora->adapts(matrix)) counts.adapters += model.lora->parameters(in, out);
  };
  add("z_proj", D, inner);
  add("x_proj", D, inner);
  add("B_proj", D, of_groups);
  add("C_proj", D, of_groups);
  add("o_proj", inner, D);
  return counts;
}

// Per head, two products with the state; per chunk, the lower triangles of a product over N and of one over P; then the
// convolution.
double Mamba2Spec::mixing_flops(int64_t seq_length) const {
  const auto P = static_cast<double>(head_dim), N = static_cast<double>(state_dim);
  const auto chunk = static_cast<double>(std::min(seq_length, kernels::kSsdChunk));
  return static_cast<double>(num_heads) * (4 * N * P + chunk * (N + P)) +
         2 * static_cast<double>(heads().channels() * conv_kernel_dim);
}

// Decaying, writing and reading the state: 5 FLOPs for each of its numbers.
double Mamba2Spec::decoding_flops(int64_t /*position*/) const {
  return 5 * static_cast<double>(num_heads * state_dim * head_dim) +
         2 * static_cast<double>(heads().channels() * conv_kernel_dim);
}

double Mamba2Spec::megatron_weights(const MixerModel& model, int64_t /*seq_length*/) const {
  return static_cast<double>(parameters(model).weights) + 3.5 * static_cast<double>(heads().inner() * state_dim);
}

// x, B and C before and after their convolution; the output before and after its norm, and the gate; the step and the
// decay of each head, and what they are computed from.
double Mamba2Spec::kept_channels() const {
  return static_cast<double>(2 * heads().channels() + 3 * heads().inner() + 5 * num_heads);
}

StateBytes Mamba2Spec::state_bytes(const StateSize& size, DType dtype) const {
  const int64_t chunk = size.chunks ? kernels::kSsdChunk : 0;
  const int64_t numbers = num_heads * (state_dim * head_dim + 2 * chunk),
                inputs = heads().channels() * (conv_kernel_dim - 1 + chunk);
  return {.fixed = numbers * static_cast<int64_t>(size_of(accumulator(dtype))) +
                   inputs * static_cast<int64_t>(size_of(dtype))};
}

// x, B, C and the step go to their heads' rank, and outputs come back.
ContextUse Mamba2Spec::context_use(ContextExchange /*exchange*/, int64_t tensor, int64_t context) const {
  if (context == 1) return {};
  const int64_t own = HeadSection{num_heads / tensor, 1}.own_heads(context),
                groups = HeadSection{num_groups / tensor, 1}.own_heads(context);
  return {.exchanges_channels = true,
          .exchanged_channels = static_cast<double>(own * (2 * head_dim + 1) + 2 * groups * state_dim)};
}

std::string Mamba2Spec::context_refusal(ContextExchange /*exchange*/, int64_t tensor, int64_t context) const {
  return refusal_of_heads({"Mamba-2", {"mamba_num_heads", num_heads}, {"mamba_num_groups", num_groups}}, tensor,
                          context);
}

}  // namespace witan
