// Going back to a checkpoint after a step that was not to be (on_nan, on_spike): which one, and how a run that is
// killed afterwards knows of it. RUN/rewinds.json lists the rewinds so far; a checkpoint knows those before it was
// saved.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/train/state/run_folder.h"
#include "witan/train/state/train_state.h"

namespace witan {

// The newest intact checkpoint in `folder` of a step before `step`, among those at multiples of `save_interval` if
// there is one: signals may have asked for others, and a run that was stopped goes back as one that was not. -1: there
// is none.
int64_t step_to_return_to(const fs::path& folder, int64_t step, int64_t save_interval);

// Writes the list, whose last rewind was made now, and removes the checkpoints behind its own: they belong to steps
// that were taken back. Called by one rank. Throws IoError, DiskFullError, CheckpointError.
void record_rewind(const RunFolder& folder, const std::vector<Rewind>& rewinds);

// Of a run that resumes from the checkpoint of `state`: repeats the last rewind to it that it does not know of yet.
// What the list has beyond that belongs to checkpoints that are gone; `writes`: it is forgotten. Throws CheckpointError
// where the file is damaged.
void take_up_rewinds(const RunFolder& folder, TrainState& state, bool writes);

// Whether an anomaly of this step is written to `folder`: there are fewer than `most` of other steps.
bool keeps_anomaly(const fs::path& folder, int64_t step, int64_t most);

}  // namespace witan
