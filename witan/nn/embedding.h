// Token embedding, and the output head that may share its weight.
#pragma once

#include "witan/nn/module.h"

namespace witan {

class Embedding : public Module {
 public:
  // weight [V, D]
  Embedding(const Builder& builder, int64_t vocabulary, int64_t width);

  Var forward(Tape& tape, const Tensor& ids);  // ids int32 [..] -> [.., D]
  Var logits(Tape& tape, const Var& x);        // x [.., D] -> [.., V], with the same weight (tied head)

 private:
  Parameter& weight_;
};

}  // namespace witan
