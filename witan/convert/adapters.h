// Adapters of low rank (nn/lora.h) among the tensors of a checkpoint: which matrix each is of, and both as one matrix.
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
  std::string base;  // "layers.0.mlp.gate_up_proj.weight", or of experts "layers.0.moe.experts.gate_up_proj"
  std::string a, b;  // [r, in] and [out, r], or of experts [E, r, in] and [E, out, r]
  Shape a_shape, b_shape;
  int64_t first_row = 0;  // of the base: that of "up_proj" in gate and up is half of its rows
  bool experts = false;

  int64_t rank() const { return a_shape[a_shape.dims() - 2]; }
  int64_t in() const { return a_shape.last(); }
  int64_t out() const { return b_shape[b_shape.dims() - 2]; }
  int64_t matrices() const { return experts ? a_shape[0] : 1; }
};

// Of all adapters of the model, in its order; none of a model without.
std::vector<AdapterTensors> adapters_of(const ModelConfig& model);
// The same model without them.
ModelConfig without_adapters(ModelConfig model);

struct AdapterValues {
  const AdapterTensors& of;
  HeldTensor a, b;
};
// W + scale B A of a whole matrix or stack W [.., rows, in], for all of its adapters: products are summed over the
// rank, from the first on, with one rounding for each (fma), and added to W, in float32 or, where W is float64, in
// that. Nothing is rounded further: whoever writes the result rounds it once. `to` receives elements of the returned
// dtype.
Element merge_adapters(const HeldTensor& base, const Shape& shape, const std::vector<AdapterValues>& adapters,
                       double scale, std::vector<std::byte>& to);

}  // namespace witan
