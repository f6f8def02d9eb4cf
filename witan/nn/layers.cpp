#include "witan/nn/layers.h"

#include <cassert>

#include "witan/autograd/recompute.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {

Fields NormConfig::fields() {
  return {
      Field{"normalization", &normalization, "Normalization before attention and MLP, and after the last layer"}.one_of(
          {"RMSNorm", "LayerNorm"}),
      Field{"norm_epsilon", &norm_epsilon, "Epsilon added to the variance"}.above(0),
      Field{"norm_weight", &norm_weight, "Give norms a learned weight"},
      Field{"norm_bias", &norm_bias, "Give LayerNorm a bias"},
  };
}

void NormConfig::validate() const {
  require<ConfigError>(!norm_bias || normalization == "LayerNorm",
                       "norm_bias = true: RMSNorm has no bias; use normalization = \"LayerNorm\" or drop norm_bias");
  require<ConfigError>(!norm_bias || norm_weight,
                       "norm_weight = false and norm_bias = true: a norm without a weight has no bias; set norm_bias = "
                       "false");
}

Norm::Norm(const Builder& builder, const NormConfig& config, int64_t width, bool sharded)
    : Module(builder.path),
      config_(config),
      sums_over_(sharded && builder.tensor_ranks() > 1 ? &builder.tensor->group : nullptr) {
  assert(!sharded || config.normalization == "RMSNorm");
  if (config.norm_weight)
    weight_ = &add_parameter(builder.of_kind(ParameterKind::norms), "weight", {width}, {Initialization::Kind::ones},
                             false, sharded ? TensorSplit{0} : TensorSplit{});
  if (config.norm_bias)
    bias_ =
        &add_parameter(builder.of_kind(ParameterKind::norms), "bias", {width}, {Initialization::Kind::zeros}, false);
}

Var Norm::weight(Tape& tape) {
  return weight_ ? tape.parameter(*weight_) : Var();
}

Var Norm::forward(Tape& tape, const Var& x, bool rematerialise) {
  const ModuleScope scope(tape, *this);
  const auto normalise = [config = config_, group = sums_over_](Tape& on, const std::vector<Var>& in) {
    const Var w = in.size() > 1 ? in[1] : Var(), b = in.size() > 2 ? in[2] : Var();
    if (group != nullptr) return ops::sharded_rmsnorm(on, in[0], w, config.norm_epsilon, *group);
    if (config.normalization == "RMSNorm") return ops::rmsnorm(on, in[0], w, config.norm_epsilon);
    return ops::layernorm(on, in[0], w, b, config.norm_epsilon);
  };
  std::vector<Var> inputs = {x};
  if (weight_) inputs.push_back(weight(tape));
  if (bias_) inputs.push_back(tape.parameter(*bias_));
  return rematerialise ? rematerialised(tape, inputs, normalise) : normalise(tape, inputs);
}

ops::SumAndNorm Norm::forward_sum(Tape& tape, const Var& a, const Var& b, bool rematerialise) {
  if (!b.defined()) return {a, forward(tape, a, rematerialise)};
  if (!rematerialise) {
    const ModuleScope scope(tape, *this);
    const double epsilon = config_.norm_epsilon;
    if (config_.normalization == "RMSNorm") return ops::add_rmsnorm(tape, a, b, weight(tape), epsilon);
    return ops::add_layernorm(tape, a, b, weight(tape), bias_ ? tape.parameter(*bias_) : Var(), epsilon);
  }
  const Var sum = ops::add(tape, a, b);
  return {sum, forward(tape, sum, rematerialise)};
}

}  // namespace witan
