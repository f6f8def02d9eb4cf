// From a checkpoint to one of Megatron-Core's "torch_dist" format, which Megatron-LM loads in any layout, a tensor at a
// time. Formats: torch.distributed.checkpoint (FileSystemReader) and megatron.core.dist_checkpointing.
#pragma once

#include <optional>

#include "witan/base/files/file.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

struct MegatronExport {
  std::optional<Element> dtype = {};  // of all tensors, instead of the model's
  int64_t positions = 0;              // that the model is meant for
};

// Writes a release checkpoint into `folder`, which must exist. The same weights give the same bytes, whatever layout
// the checkpoint was written by. Returns the ledger, its files empty. Throws ConfigError for a model that Megatron-Core
// has no place for; CheckpointError, IoError, DiskFullError.
Ledger export_megatron(CheckpointWeights& weights, const MegatronExport& how, const fs::path& folder);

}  // namespace witan
