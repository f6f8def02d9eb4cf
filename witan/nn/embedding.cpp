#include "witan/nn/embedding.h"

#include "witan/ops/embedding.h"
#include "witan/ops/linear.h"

namespace witan {

Embedding::Embedding(const Builder& builder, int64_t vocabulary, int64_t width)
    : Module(builder.path),
      part_{builder.share(vocabulary) * builder.tensor_rank(), vocabulary},
      weight_(add_parameter(builder, "weight", {vocabulary, width}, builder.embedding_init(), true, Cut{0})) {}

Var Embedding::forward(Tape& tape, const Tensor& ids) {
  const ModuleScope scope(tape, *this);
  return ops::embedding(tape, ids, tape.parameter(weight_), part_);
}

Var Embedding::logits(Tape& tape, const Var& x) {
  return ops::linear(tape, x, tape.parameter(weight_.as_head()), {});
}

}  // namespace witan
