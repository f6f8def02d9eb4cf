// The type that each tensor of a GGUF file has, as llama.cpp chooses it when it quantises a model.
// Source: llama_tensor_get_type() in https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp
#pragma once

#include <cstdint>
#include <string_view>

#include "witan/convert/elements/elements.h"
#include "witan/tensor/shape.h"

namespace witan {

struct GgufTypes {
  Element type = Element::f32;  // of most matrices
  // Whether values and down-projections of every third layer between, and of all in the first and the last eighth, are
  // in Q6_K where `type` is Q4_K: llama.cpp's Q4_K_M.
  bool mixed = false;
  int64_t layers = 0;
  bool tied = false;  // the embedding is the output matrix
};

// Vectors, norms, routers and positions are float32. Of k-quants the output matrix is Q6_K; of MXFP4 everything but
// experts is Q8_0. Rows that are no blocks take a type of smaller blocks that has more bits.
Element gguf_type_of(const GgufTypes& types, std::string_view name, const Shape& shape);

// `type`, or the one that takes its place for rows of this length: Q5_0 for Q4_K, Q8_0 for Q6_K, float16 for others.
Element type_for_rows(Element type, int64_t row);

// general.file_type of a file most of whose elements are of a type.
int64_t gguf_file_type(std::string_view type, bool mixed);

}  // namespace witan
