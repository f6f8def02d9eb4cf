// From a checkpoint to a GGUF file, a stretch at a time: memory holds the tensors of the checkpoint that one tensor of
// the file is made of, and these only where several ranks wrote them.
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

struct GgufExport {
  const Architecture* architecture = nullptr;
  int64_t positions = 0;                          // that the model is meant for
  GgufMetadata more = GgufMetadata();             // keys of the vocabulary
  std::map<std::string, std::string> types = {};  // by tensor, as they were imported; of others the model's
  std::optional<Element> type = {};               // of all tensors instead, as gguf_type_of() chooses (gguf_types.h)
  bool mixed = false;                             // of Q4_K: GgufTypes::mixed
};

// Writes the file, whole or not at all. The same weights give the same bytes, whatever layout the checkpoint was
// written by. Returns the ledger. Throws ConfigError for a model that llama.cpp's architecture cannot be;
// CheckpointError, for values too that the type cannot hold (require_quantisable); IoError, DiskFullError.
// `before_commit` is called with the ledger before the file is there under its name: where it throws, there is none.
Ledger export_gguf(CheckpointWeights& weights, const GgufExport& how, const fs::path& file,
                   const std::function<void(const Ledger&)>& before_commit = {});

}  // namespace witan
