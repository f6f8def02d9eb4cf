// A legacy checkpoint of Megatron-LM: mp_rank_XX/model_optim_rng.pt, a file of torch.save() for each rank of the layout
// that wrote it, by its place in tensor, pipeline and expert parallelism.
#pragma once

#include "witan/convert/megatron/megatron_files.h"
#include "witan/convert/megatron/megatron_tensors.h"

namespace witan {

// Throws CheckpointError.
void read_legacy(MegatronFiles& files, MegatronContents& contents);

}  // namespace witan
