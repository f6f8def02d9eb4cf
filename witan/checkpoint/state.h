// The state that one rank contributes to a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "witan/tensor/region.h"
#include "witan/tensor/tensor.h"

namespace witan {

// A part of a global tensor: the rank's shard.
struct StateTensor {
  enum class Kind : uint8_t {
    value,      // of a parameter
    buffer,     // nn/buffer.h; a checkpoint may lack it: it keeps the value that it begins with
    master,     // the float32 that a parameter's value is the rounding of
    optimizer,  // what an optimizer would begin again without
  };

  std::string name;  // "layers.0.attention.q_proj.weight", "adam.m/layers.0.attention.q_proj.weight"
  Tensor local;      // contiguous, of any shape: the elements of the region, in its order
  Shape global_shape;
  Region region;
  bool writes = true;     // exactly one rank of the world writes each element; the others hold replicas
  Tensor remainder = {};  // of a float32 stored in two, of which `local` is the first (tensor/host.h)
  Kind kind = Kind::value;

  // The dtype of the global tensor in files.
  DType dtype() const { return remainder.defined() ? DType::f32 : local.dtype(); }
};

// Throws ShapeError unless the tensor satisfies the comments of its members.
void check_state(const StateTensor& state);

}  // namespace witan
