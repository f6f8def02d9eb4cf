// Token embeddings.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan::ops {

// ids [..] int32 (at most 4 dims), w [V, D] -> [.., D] with y[t] = w[ids[t]]. Throws ShapeError; on the CPU, where
// looking is cheap, DataError naming the first id outside [0, V) and its index.
Var embedding(Tape& tape, const Tensor& ids, const Var& w);

// The same with the table divided among ranks: w [n, D] is this rank's part of it. Rows of ids that others hold are 0,
// so that y is Partial over the ranks' axis, and the gradient of w is the part's own. ids must be equal on all ranks.
Var embedding(Tape& tape, const Tensor& ids, const Var& w, const VocabularyPart& part);

}  // namespace witan::ops
