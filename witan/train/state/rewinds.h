// Rewinds: returns to a checkpoint after an anomalous step (on_nan, on_spike). RUN/rewinds.json lists all rewinds, so
// that a run that is killed afterwards repeats them; a checkpoint holds those from before it was saved.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/train/state/run_folder.h"
#include "witan/train/state/train_state.h"

namespace witan {

// The step of the newest intact checkpoint in `folder` before `step`; -1 if there is none. Checkpoints at multiples of
// `save_interval` come first: signals cause others, and a run that was stopped by one shall rewind as if it were not.
int64_t step_to_return_to(const fs::path& folder, int64_t step, int64_t save_interval);

// Writes the list, whose last rewind is new, and removes the checkpoints after that rewind's, since their steps are
// undone. Called by one rank. Throws IoError, DiskFullError, CheckpointError.
void record_rewind(const RunFolder& folder, const std::vector<Rewind>& rewinds);

// For a run that resumes from the checkpoint of `state`: repeats the last rewind to that checkpoint, if it happened
// after the checkpoint was saved. Later rewinds were to checkpoints that are lost, and if `writes`, they are removed
// from the list. Throws CheckpointError if the file is damaged.
void take_up_rewinds(const RunFolder& folder, TrainState& state, bool writes);

// Whether an anomaly of this step may be written to `folder`, which holds at most `most` others.
bool keeps_anomaly(const fs::path& folder, int64_t step, int64_t most);

}  // namespace witan
