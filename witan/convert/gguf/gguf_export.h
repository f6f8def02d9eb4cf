// Writes a GGUF file from a checkpoint, a stretch at a time. Memory holds the checkpoint's tensors for one tensor of
// the file, and only if several ranks wrote them; otherwise they are mapped.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"
#include "witan/formats/gguf.h"
#include "witan/tensor/shape.h"

namespace witan {

// The type of each tensor of a file, as llama.cpp chooses it when it quantises a model.
// Source: llama_tensor_get_type() in https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp
struct GgufTypes {
  Element type = Element::f32;  // for most matrices
  // llama.cpp's Q4_K_M: with Q4_K, projections of values and down-projections are Q6_K in the first and the last eighth
  // of the layers and in every third layer between.
  bool mixed = false;
  int64_t layers = 0;
  bool tied = false;  // the embedding is the output matrix
};

// The type of one tensor. Vectors, norms, routers and positions are float32. With k-quants the output matrix is Q6_K;
// with MXFP4 everything except experts is Q8_0. Rows that are not whole blocks get a type with smaller blocks and more
// bits.
Element gguf_type_of(const GgufTypes& types, std::string_view name, const Shape& shape);

// Returns `type`, or its replacement if rows of this length are not whole blocks: Q5_0 for Q4_K, Q8_0 for Q6_K, float16
// for others.
Element type_for_rows(Element type, int64_t row);

// The general.file_type of a file in which most elements have this type.
int64_t gguf_file_type(std::string_view type, bool mixed);

struct GgufExport {
  const Architecture* architecture = nullptr;
  int64_t positions = 0;                          // the length of context that the model is meant for
  GgufMetadata more = GgufMetadata();             // keys of the vocabulary, and of what reads images
  std::map<std::string, std::string> types = {};  // as imported, by tensor; others have the model's dtype
  std::optional<Element> type = {};               // for all tensors, as gguf_type_of() chooses
  bool mixed = false;                             // with Q4_K: GgufTypes::mixed
};

// Writes the file, complete or not at all. The bytes do not depend on the layout that wrote the checkpoint. Returns the
// ledger, which `before_commit` gets before the file has its name; if that throws, there is no file. Throws ConfigError
// for a model that llama.cpp's architecture cannot hold; CheckpointError, also for values that cannot be quantised
// (require_quantisable); IoError, DiskFullError.
Ledger export_gguf(CheckpointWeights& weights, const GgufExport& how, const fs::path& file,
                   const std::function<void(const Ledger&)>& before_commit = {});

}  // namespace witan
