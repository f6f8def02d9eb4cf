#include "witan/nn/short_convolution/short_convolution.h"

#include "witan/kernels/linear_attention/short_convolution.h"
#include "witan/nn/mixer/recurrent_parts.h"
#include "witan/ops/linear_attention/earlier_tokens.h"
#include "witan/ops/linear_attention/gated_convolution.h"

namespace witan {

ConvolutionState::ConvolutionState(Stream& stream, int64_t rows, int64_t channels, int64_t taps, DType dtype)
    : tails(stream.empty({rows, taps - 1, channels}, dtype)) {}

void ConvolutionState::copy_row(Stream& stream, int64_t from, int64_t to) {
  stream.copy(tails.narrow(0, to, 1), tails.narrow(0, from, 1));
}

ShortConvolution::ShortConvolution(const Builder& builder, const ShortConvolutionSpec& spec, const MixerModel& model,
                                   const ContextAxis& context)
    : TokenMixer(builder.path),
      axis_(builder.tensor),
      context_(context),
      channels_(builder.share(spec.channels)),
      taps_(spec.conv_kernel_dim),
      projections_(builder.side_by_side({3 * channels_, model.width})),
      B_proj_((builder / "B_proj").at(projections_, 0, channels_), model.width, spec.channels, builder.init_std,
              spec.bias ? Bias::zeros : Bias::none, Divided::out()),
      C_proj_((builder / "C_proj").at(projections_, channels_, channels_), model.width, spec.channels, builder.init_std,
              spec.bias ? Bias::zeros : Bias::none, Divided::out()),
      x_proj_((builder / "x_proj").at(projections_, 2 * channels_, channels_), model.width, spec.channels,
              builder.init_std, spec.bias ? Bias::zeros : Bias::none, Divided::out()),
      o_proj_(builder / "o_proj", spec.channels, model.width, builder.output_init_std,
              spec.bias ? Bias::zeros : Bias::none, Divided::in()) {
  for (Linear* child : {&B_proj_, &C_proj_, &x_proj_, &o_proj_}) add_child(*child);
  const Builder factors = builder.of_kind(ParameterKind::norms);
  filter_ = &add_parameter(factors, "conv.weight", {spec.channels, taps_}, ShortConvolutions::init(builder, taps_),
                           true, TensorSplit{0});
  if (!spec.bias) return;
  const Initialization init =
      builder.torch ? Builder::torch_uniform(taps_) : Initialization{Initialization::Kind::zeros};
  bias_ = &add_parameter(factors, "conv.bias", {spec.channels}, init, false, TensorSplit{0});
}

Var ShortConvolution::project(Tape& tape, const Var& x, const Randomness& randomness) {
  return project_together(tape, x, {&B_proj_, &C_proj_, &x_proj_}, randomness);
}

Var ShortConvolution::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
                              const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [B, S, D]
  const Var bcx = project(tape, tokens, randomness), filter = tape.parameter(*filter_);
  const Var bias = bias_ != nullptr ? tape.parameter(*bias_) : Var();
  const Tensor ids = where.hints.one_sequence_per_row ? Tensor() : where.sequence_ids;
  if (!context_.divides())
    return o_proj_.forward(tape, ops::gated_convolution(tape, bcx, filter, bias, ids), randomness);
  Group& ranks = *context_.group;
  const int64_t earlier = taps_ - 1;
  const Tensor extended_ids =
      ids.defined() ? ops::ids_with_earlier_tokens(tape.stream(), ids, earlier, ranks) : Tensor();
  const Var extended = ops::with_earlier_tokens(tape, bcx, earlier, ranks);
  const Var y = ops::gated_convolution(tape, extended, filter, bias, extended_ids);
  return o_proj_.forward(tape, ops::without_earlier_tokens(tape, y, earlier), randomness);
}

Var ShortConvolution::decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                             const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  Stream& stream = tape.stream();
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [1, T, D]
  const Tensor bcx = project(tape, tokens, {}).value();              // [1, T, 3 C]
  const int64_t T = bcx.size(1);
  const auto part = [&](int64_t i) { return bcx.reshape({T, 3 * channels_}).narrow(1, i * channels_, channels_); };
  const Tensor u = stream.empty({T, channels_}, x.dtype()), v = stream.empty_like(u), y = stream.empty_like(u);
  kernels::multiply_columns(stream, u, part(0), part(2));
  const kernels::ConvolutionFilters filters{tape.parameter(*filter_).value(),
                                            bias_ != nullptr ? tape.parameter(*bias_).value() : Tensor(), false};
  kernels::short_convolution_decode(stream, v, dynamic_cast<const ConvolutionState&>(state).tails, u, filters,
                                    where.cached);
  kernels::multiply_columns(stream, y, part(1), v);
  return o_proj_.forward(tape, tape.constant(y.reshape({1, T, channels_})));
}

std::unique_ptr<SequenceState> ShortConvolution::make_state(Stream& stream, const StateSize& size, DType dtype) const {
  return std::make_unique<ConvolutionState>(stream, size.rows, channels_, taps_, dtype);
}

}  // namespace witan
