// The LoRA adapters (nn/lora.h) among the tensors of a checkpoint, and merging them into their matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "witan/convert/links.h"
#include "witan/model/config.h"
#include "witan/tensor/shape.h"

namespace witan {

struct AdapterTensors {
  std::string base;  // the adapted matrix, "layers.0.mlp.gate_up_proj.weight" or "layers.0.moe.experts.gate_up_proj"
  std::string a, b;  // [r, in] and [out, r], for experts [E, r, in] and [E, out, r]
  Shape a_shape, b_shape;
  std::string magnitude = {};  // the changes of its rows' magnitudes [out]; empty without DoRA
  int64_t first_row = 0;       // in the base: an adapter of up_proj begins at half of the rows of gate and up
  bool experts = false;

  int64_t rank() const { return a_shape[a_shape.dims() - 2]; }
  int64_t in() const { return a_shape.last(); }
  int64_t out() const { return b_shape[b_shape.dims() - 2]; }
  int64_t matrices() const { return experts ? a_shape[0] : 1; }
};

// All adapters of the model, in its order.
std::vector<AdapterTensors> adapters_of(const ModelConfig& model);
// Removes the adapters from a model's configuration.
ModelConfig without_adapters(ModelConfig model);

struct AdapterValues {
  const AdapterTensors& of;
  HeldTensor a, b, magnitude = {};
};
// The magnitudes |W[n]| + change[n] of the adapter's rows, computed in float64.
std::vector<double> magnitudes_of(const AdapterTensors& of, const HeldTensor& base, const HeldTensor& change);

// Computes W + scale B A for a matrix or a stack of matrices W [.., rows, in] with all of its adapters. Products are
// accumulated over the rank in order, with one rounding each (fma), in float32, or float64 if W is. The result is not
// rounded to W's dtype, so that the caller rounds once. Rows with a magnitude are then multiplied by it and divided by
// their norm, both in float64. `to` receives elements of the returned dtype.
Element merge_adapters(const HeldTensor& base, const Shape& shape, const std::vector<AdapterValues>& adapters,
                       double scale, std::vector<std::byte>& to);

}  // namespace witan
