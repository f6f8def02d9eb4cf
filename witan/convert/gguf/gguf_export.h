// From a checkpoint to a GGUF file, a stretch at a time: memory holds the tensors of the checkpoint that one tensor of
// the file is made of, and these only where several ranks wrote them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"
#include "witan/formats/gguf.h"

namespace witan {

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
