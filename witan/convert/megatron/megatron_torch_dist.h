// A checkpoint of Megatron-LM in the format "torch_dist": .metadata and *.distcp of torch.distributed.checkpoint, and
// common.pt. Format: torch/distributed/checkpoint/metadata.py and filesystem.py.
#pragma once

#include "witan/convert/megatron/megatron_files.h"
#include "witan/convert/megatron/megatron_tensors.h"

namespace witan {

// Throws CheckpointError.
void read_torch_dist(MegatronFiles& files, MegatronContents& contents);

}  // namespace witan
