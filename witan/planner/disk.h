// What a run needs of the disk that its checkpoints go to: known before its first step.
#pragma once

#include <cstdint>

#include "witan/base/file.h"
#include "witan/train/run/resolve.h"

namespace witan {

// Bytes of one checkpoint: its tensors to the byte; their names and places, the tokenizer and the blocks of the file
// system by a bound.
int64_t checkpoint_bytes(const ResolvedConfig& config);

// Where a run stands that begins or is resumed.
struct DiskState {
  int64_t step = 0;         // done
  int64_t checkpoints = 0;  // that are there
};

// How many checkpoints more than there are the disk must hold at some moment: those that are kept and the one being
// written, or as many as the run will still save.
int64_t more_checkpoints(const TrainConfig& config, const DiskState& state = {});

// Throws DiskFullError, which names the ways out, unless so many more checkpoints, of `bytes` each, find room in `free`
// bytes. `folder`: the run's.
void require_disk(const TrainConfig& config, int64_t bytes, const DiskState& state, const fs::path& folder,
                  uint64_t free);

// Bytes that are free where a folder is, or will be made.
uint64_t free_bytes_for(const fs::path& folder);

}  // namespace witan
