// Tensors of any shape as the matrices that kernels take.
#pragma once

#include "witan/tensor/tensor.h"

namespace witan::ops {

// [.., D] as [rows, D]; a matrix keeps its strides.
inline Tensor as_matrix(const Tensor& tensor) {
  if (tensor.shape().dims() == 2) return tensor;
  const auto [rows, columns] = tensor.shape().as_rows();
  return tensor.reshape({rows, columns});
}

}  // namespace witan::ops
