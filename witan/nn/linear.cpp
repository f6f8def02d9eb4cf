#include "witan/nn/linear.h"

#include "witan/ops/linear.h"

namespace witan {

Linear::Linear(const Builder& builder, int64_t in, int64_t out, double std, Bias bias)
    : Module(builder.path), weight_(add_parameter(builder, "weight", {out, in}, builder.linear_init(std, in))) {
  if (bias == Bias::zeros) bias_ = &add_parameter(builder, "bias", {out}, builder.bias_init(in), false);
}

Var Linear::forward(Tape& tape, const Var& x) {
  const ModuleScope scope(tape, *this);
  return ops::linear(tape, x, tape.parameter(weight_), bias_ ? tape.parameter(*bias_) : Var());
}

}  // namespace witan
