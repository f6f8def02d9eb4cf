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
    value,      // a parameter's value
    buffer,     // nn/buffer.h; a checkpoint may lack it, and it then keeps its initial value
    master,     // the float32 master of a parameter's value
    optimizer,  // optimizer state, without which an optimizer would start anew
  };

  std::string name;  // "layers.0.attention.q_proj.weight", "adam.m/layers.0.attention.q_proj.weight"
  Tensor local;      // contiguous, of any shape: the region's elements in order
  Shape global_shape;
  Region region;
  bool writes = true;     // exactly one rank writes each element; the others hold replicas
  Tensor remainder = {};  // the second half of a float32 stored in two, of which `local` is the first (tensor/host.h)
  Kind kind = Kind::value;

  // Whether tensors of this kind belong to the model; the others belong to its training alone.
  static constexpr bool is_of_model(Kind kind) { return kind == Kind::value || kind == Kind::buffer; }
  // The parameter that a value, a master or an optimizer's state belongs to; of a buffer its own name.
  std::string parameter() const { return name.substr(name.find('/') + 1); }
  // The dtype of the global tensor in files.
  DType dtype() const { return remainder.defined() ? DType::f32 : local.dtype(); }
};

}  // namespace witan
