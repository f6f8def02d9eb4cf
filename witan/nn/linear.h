// y = x wᵀ + b
#pragma once

#include "witan/nn/module.h"

namespace witan {

enum class Bias : uint8_t { none, zeros };  // zeros: at first, unless PyTorch's defaults are asked for

class Linear : public Module {
 public:
  // weight [out, in], normal with the given standard deviation; bias [out], which does not decay
  Linear(const Builder& builder, int64_t in, int64_t out, double std, Bias bias = Bias::none);

  Var forward(Tape& tape, const Var& x);  // x [.., in] -> [.., out]

  // For who computes several of them at once.
  Parameter& weight() { return weight_; }
  bool has_bias() const { return bias_ != nullptr; }

 private:
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace witan
