// The disk space that a run needs for checkpoints and anomalies, known before its first step.
#pragma once

#include <cstdint>
#include <string>

#include "witan/base/files/file.h"
#include "witan/train/config/resolve.h"

namespace witan {

// Bytes of one folder of each kind. Tensors are exact; their names and offsets, the tokenizer and the file system's
// blocks are bounded.
struct FolderBytes {
  int64_t checkpoint = 0;
  int64_t anomaly = 0;    // values, buffers and a global batch (train/loop/anomaly.h)
  int64_t reference = 0;  // weights of a frozen reference, written once before the first step; 0: there is none
};
FolderBytes folder_bytes(const ResolvedConfig& config);

// The progress of a run that starts or resumes.
struct DiskState {
  int64_t step = 0;         // completed steps
  int64_t checkpoints = 0;  // already on disk
  int64_t anomalies = 0;    // already on disk
};

// The most checkpoints that the disk must hold beyond those already there: the ones that are kept plus the one being
// written, or as many as the run will still save.
int64_t more_checkpoints(const TrainConfig& config, const DiskState& state = {});

// How many anomalies the run may still write (keep_anomalies).
int64_t more_anomalies(const TrainConfig& config, const DiskState& state = {});

// Throws DiskFullError unless the remaining checkpoints and anomalies fit into `free` bytes; the message names the ways
// out. Anomalies count, since one that took the space of a checkpoint would end the run. `folder`: the run's folder.
void require_disk(const TrainConfig& config, const FolderBytes& bytes, const DiskState& state, const fs::path& folder,
                  uint64_t free);

// A warning if the answers that the run will still sample and keep, all of them long, would not fit into `free` bytes
// besides its checkpoints and anomalies; else empty.
std::string warn_of_rollouts(const RunConfig& config, const FolderBytes& bytes, const DiskState& state,
                             const fs::path& folder, uint64_t free);

// Free bytes on the disk of a folder, which need not exist yet.
uint64_t free_bytes_for(const fs::path& folder);

}  // namespace witan
