// RMSNorm or LayerNorm, as the configuration says.
#pragma once

#include "witan/base/config/fields.h"
#include "witan/nn/module.h"
#include "witan/ops/norm/norm.h"

namespace witan {

struct NormConfig {
  std::string normalization = "RMSNorm";
  double norm_epsilon = 1e-5;
  bool norm_weight = true;  // false: rows are normalised and not scaled
  bool norm_bias = false;   // LayerNorm alone

  Fields fields();
  void validate() const;  // throws ConfigError
};

class Norm : public Module {
 public:
  // `sharded`: the ranks of the tensor axis hold equal parts of the D channels, of x and of the weight, and normalise
  // over them all (RMSNorm alone). Without it each normalises rows that it has whole.
  Norm(const Builder& builder, const NormConfig& config, int64_t width, bool sharded = false);

  // x [.., D] -> [.., D]. With `rematerialise`, later ops keep x instead of the output and normalise again.
  Var forward(Tape& tape, const Var& x, bool rematerialise);
  // The same of sum = a + b; b may be undefined: a
  ops::SumAndNorm forward_sum(Tape& tape, const Var& a, const Var& b, bool rematerialise);

  // For who normalises in a pass of its own; of a norm that has a weight.
  Parameter& weight() { return *weight_; }
  const NormConfig& config() const { return config_; }

 private:
  Var weight(Tape& tape);  // undefined where there is none

  NormConfig config_;
  Group* sums_over_ = nullptr;  // of the ranks that hold parts of a row
  Parameter *weight_ = nullptr, *bias_ = nullptr;
};

}  // namespace witan
