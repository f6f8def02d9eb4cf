// The files of RUN/rollouts, one for the answers of each step (docs/formats/rollouts.md).
#pragma once

#include <cstdint>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/train/config/config.h"

namespace witan {

// The file of a step in the folder RUN/rollouts.
fs::path rollout_file(const fs::path& folder, int64_t step);

// Removes the files of steps up to `step` but for the newest `kept`, and for those that are read by a run which resumes
// from one of these checkpoints, given by their steps: files of later steps whose sampling began no later.
void remove_old_rollouts(const fs::path& folder, int64_t step, int64_t kept, const std::vector<int64_t>& checkpoints);

// About the bytes of a step's file if all answers have their greatest length, in typical text.
int64_t rollout_file_bytes(const RunConfig& config);
// How many of these files a run keeps.
int64_t kept_rollout_files(const RunConfig& config);

}  // namespace witan
