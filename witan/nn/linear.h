// y = x wᵀ, without bias.
#pragma once

#include "witan/nn/module.h"

namespace witan {

class Linear : public Module {
 public:
  // weight [out, in], normal with the given standard deviation
  Linear(const Builder& builder, int64_t in, int64_t out, double std);

  Var forward(Tape& tape, const Var& x);  // x [.., in] -> [.., out]

 private:
  Parameter& weight_;
};

}  // namespace witan
