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

// Writes the adapters of a run as PEFT loads them on the base model: adapter_config.json and
// adapter_model.safetensors (https://huggingface.co/docs/peft/developer_guides/checkpoint). Names are those of
// transformers' modules after "base_model.model.". Adapters of experts, whose matrices are parameters of one module
// there, are `target_parameters`: A [E r, in] has the rows of one expert after the other, B [out, r E] the columns of
// all experts for a row of A, then for the next.
//
// Both files go into `folder`, which must exist. `base`: where the base model is, for PEFT to load; empty: unknown.
// Returns the ledger of the adapters, its files empty. Throws ConfigError for a model without adapters, and where
// modules of the architecture hold a matrix in a form that an adapter of Witan's does not have (in one with others,
// transposed, or with gate and up taking turns).
Ledger export_peft(CheckpointWeights& weights, const Architecture& architecture, const std::string& base,
                   const fs::path& folder);

}  // namespace witan
