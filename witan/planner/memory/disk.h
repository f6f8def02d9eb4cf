// What a run needs of the disk that its checkpoints and anomalies go to: known before its first step.
#pragma once

#include <cstdint>

#include "witan/base/files/file.h"
#include "witan/train/run/resolve.h"

namespace witan {

// Bytes of one folder of each kind: its tensors to the byte; their names and places, the tokenizer and the blocks of
// the file system by a bound.
struct FolderBytes {
  int64_t checkpoint = 0;
  int64_t anomaly = 0;  // values, buffers and a global batch (train/run/anomaly.h)
};
FolderBytes folder_bytes(const ResolvedConfig& config);

// Where a run stands that begins or is resumed.
struct DiskState {
  int64_t step = 0;         // done
  int64_t checkpoints = 0;  // that are there
  int64_t anomalies = 0;    // likewise
};

// How many checkpoints more than there are the disk must hold at some moment: those that are kept and the one being
// written, or as many as the run will still save.
int64_t more_checkpoints(const TrainConfig& config, const DiskState& state = {});

// How many anomalies it may still write (keep_anomalies).
int64_t more_anomalies(const TrainConfig& config, const DiskState& state = {});

// Throws DiskFullError, which names the ways out, unless so many more checkpoints and anomalies find room in `free`
// bytes: an anomaly that takes the room of a checkpoint would end the run. `folder`: the run's.
void require_disk(const TrainConfig& config, const FolderBytes& bytes, const DiskState& state, const fs::path& folder,
                  uint64_t free);

// Bytes that are free where a folder is, or will be made.
uint64_t free_bytes_for(const fs::path& folder);

}  // namespace witan
