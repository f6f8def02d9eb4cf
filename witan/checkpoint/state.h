// What a checkpoint holds of one rank.
#pragma once

#include <cstdint>
#include <string>

#include "witan/tensor/tensor.h"

namespace witan {

// Rows [first_row, first_row + local.size(0)) of a global tensor; a scalar (no dims) counts as one row.
struct StateTensor {
  std::string name;    // "layers.0.attention.q_proj.weight", "adam.m/layers.0.attention.q_proj.weight"
  Tensor local;        // contiguous; [rows, ..] of the global [R, ..]
  Shape global_shape;  // [R, ..]
  int64_t first_row = 0;
  bool writes = true;     // exactly one rank of the world writes each row; the others hold replicas
  Tensor remainder = {};  // of a float32 that is kept in halves, of which `local` is the upper one: the lower one

  // Of the global tensor, as files hold it.
  DType dtype() const { return remainder.defined() ? DType::f32 : local.dtype(); }
};

// Throws ShapeError unless the tensor keeps what its comments say.
void check_state(const StateTensor& state);

}  // namespace witan
