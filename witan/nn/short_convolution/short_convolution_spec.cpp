#include "witan/nn/short_convolution/short_convolution_spec.h"

#include "witan/nn/lora.h"
#include "witan/nn/short_convolution/short_convolution.h"

namespace witan {

std::unique_ptr<TokenMixer> ShortConvolutionSpec::make(const Builder& builder, const MixerModel& model,
                                                       const ContextAxis& context) const {
  return std::make_unique<ShortConvolution>(builder, *this, model, context);
}

MixerCounts ShortConvolutionSpec::parameters(const MixerModel& model) const {
  const int64_t D = model.width, biases = 4 * channels + D;
  MixerCounts counts{.weights = 4 * channels * D, .vectors = channels * conv_kernel_dim + (bias ? biases : 0)};
  if (!model.lora) return counts;
  for (const char* matrix : {"B_proj", "C_proj", "x_proj"})
    if (model.lora->adapts(matrix)) counts.adapters += model.lora->parameters(D, channels);
  if (model.lora->adapts("o_proj")) counts.adapters += model.lora->parameters(channels, D);
  return counts;
}

// The taps and the two gates.
double ShortConvolutionSpec::mixing_flops(int64_t /*seq_length*/) const {
  return static_cast<double>(channels * (2 * conv_kernel_dim + 2));
}

double ShortConvolutionSpec::decoding_flops(int64_t position) const {
  return mixing_flops(position + 1);
}

// The gates, x, and what the output projection reads.
double ShortConvolutionSpec::kept_channels() const {
  return static_cast<double>(4 * channels);
}

StateBytes ShortConvolutionSpec::state_bytes(const StateSize& /*size*/, DType dtype) const {
  return {.fixed = channels * (conv_kernel_dim - 1) * static_cast<int64_t>(size_of(dtype))};
}

}  // namespace witan
