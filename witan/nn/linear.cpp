#include "witan/nn/linear.h"

#include <cassert>

#include "witan/ops/linear.h"

namespace witan {
namespace {

TensorSplit split_of_weight(Divided divided) {
  if (divided.by == Divided::By::none) return {};
  return divided.by == Divided::By::out ? TensorSplit{0, divided.blocks, divided.uneven} : TensorSplit{1};
}

}  // namespace

Linear::Linear(const Builder& builder, int64_t in, int64_t out, double std, Bias bias, Divided divided)
    : Module(builder.path),
      weight_(add_parameter(builder, "weight", {out, in},
                            Initialization::padded(builder.linear_init(std, in), divided.padding * in), true,
                            split_of_weight(divided))) {
  assert(divided.padding == 0 || bias == Bias::none);
  if (divided.by == Divided::By::in && builder.tensor) sums_over_.emplace(*builder.tensor);
  if (bias == Bias::zeros)
    bias_ = &add_parameter(builder.of_kind(ParameterKind::biases), "bias", {out}, builder.bias_init(in), false,
                           divided.by == Divided::By::out ? TensorSplit{0, divided.blocks} : TensorSplit{});
}

Var Linear::forward(Tape& tape, const Var& x) {
  const ModuleScope scope(tape, *this);
  const Var weight = tape.parameter(weight_), bias = bias_ ? tape.parameter(*bias_) : Var();
  return sums_over_ ? row_parallel_linear(tape, x, weight, bias, *sums_over_) : ops::linear(tape, x, weight, bias);
}

}  // namespace witan
