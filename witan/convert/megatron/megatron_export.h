// Writes a checkpoint in Megatron-Core's "torch_dist" format, which Megatron-LM loads in any layout, tensor by tensor.
// Formats: torch.distributed.checkpoint (FileSystemReader) and megatron.core.dist_checkpointing.
#pragma once

#include <optional>

#include "witan/base/files/file.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

struct MegatronExport {
  std::optional<Element> dtype = {};  // for all tensors, instead of the model's
  int64_t positions = 0;              // the length of context that the model is meant for
};

// Writes a release checkpoint into `folder`, which must exist. The bytes do not depend on the layout that wrote the
// source. Returns the ledger without files. Throws ConfigError for a model that Megatron-Core cannot hold;
// CheckpointError, IoError, DiskFullError.
Ledger export_megatron(CheckpointWeights& weights, const MegatronExport& how, const fs::path& folder);

}  // namespace witan
