// From a checkpoint to a Hugging Face folder, a tensor at a time: memory holds the tensors of the checkpoint that one
// tensor of the folder is made of, and these only where several ranks wrote them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/convert/hf/hf_quantiser.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

struct HfExport {
  const Architecture* architecture = nullptr;
  NameStyle style;
  std::map<std::string, std::string> dtypes = {};   // by tensor, as they were imported; of others the checkpoint's
  std::optional<Element> dtype = {};                // of all tensors instead
  std::optional<HfQuantisation> quantisation = {};  // of projections; other tensors as without it
  uint64_t shard_bytes = 5'000'000'000;             // a file has no more, unless it holds one tensor alone
};

// Writes model.safetensors, or shards with an index, into `folder`, which must exist. The same weights give the same
// bytes, whatever layout the checkpoint was written by. Returns the ledger, its files empty. Throws ConfigError for a
// model that the architecture has no place for, or cannot have quantised; CheckpointError, IoError, DiskFullError.
Ledger export_weights(CheckpointWeights& weights, const HfExport& how, const fs::path& folder);

// The quantization_config, as JSON, of what is written quantised; else empty.
std::string quantization_config(const CheckpointWeights& weights, const HfExport& how);

}  // namespace witan
