// Views, parts and joins of tensors.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/tensor/tensor.h"

namespace witan::ops {

// The same elements under another shape of equal size; no copy. Throws ShapeError.
Var reshape(Tape& tape, const Var& x, const Shape& shape);

// One of N equal parts of a dim.
// y[a,:] = x[a,part,:];  x [A, N, I] -> [A, I]. The other parts' gradient is zero. Throws ShapeError.
Var take_part(Tape& tape, const Var& x, int64_t part);

// Two tensors side by side.
// y[t,:] = a[t,:], then b[t,:];  a [.., I], b [.., J] -> [.., I + J]. Throws ShapeError.
Var join_columns(Tape& tape, const Var& a, const Var& b);

// A tensor [.., D] as the matrix [rows, D] that kernels take; a matrix keeps its strides.
inline Tensor as_matrix(const Tensor& tensor) {
  if (tensor.shape().dims() == 2) return tensor;
  const auto [rows, columns] = tensor.shape().as_rows();
  return tensor.reshape({rows, columns});
}

}  // namespace witan::ops
