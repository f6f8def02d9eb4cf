#include "witan/nn/embedding.h"

#include "witan/ops/linear/linear.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {

namespace {

TensorSplit split_of_table(Embedding::Divided divided) {
  return divided == Embedding::Divided::entries ? TensorSplit{.dim = 0, .uneven = true} : TensorSplit{.dim = 1};
}

}  // namespace

Embedding::Embedding(const Builder& builder, int64_t size, int64_t width, int64_t padding, Divided divided)
    : Module(builder.path),
      part_{divided == Divided::channels
                ? 0
                : nearly_equal_piece(size + padding, builder.tensor_ranks(), builder.tensor_rank()).begin,
            size, padding},
      weight_(add_parameter(builder.of_kind(ParameterKind::embeddings), "weight", {size + padding, width},
                            Initialization::padded(builder.embedding_init(), padding * width), true,
                            split_of_table(divided))) {}

Var Embedding::forward(Tape& tape, const Tensor& ids, Place place) {
  const ModuleScope scope(tape, *this);
  Leaf& leaf = place == Place::behind_layers ? weight_.as_head() : weight_;
  return ops::embedding(tape, ids, tape.parameter(leaf), part_);
}

Var Embedding::logits(Tape& tape, const Var& x) {
  return ops::linear(tape, x, tape.parameter(weight_.as_head()), {});
}

}  // namespace witan
