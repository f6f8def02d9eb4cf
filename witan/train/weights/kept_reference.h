// The weights of a run's frozen reference, as the run keeps them: RUN/reference is a folder of checkpoints with one, of
// these weights alone. A run so resumes with the same bits, whatever has become of the model that they were taken from.
#pragma once

#include <optional>

#include "witan/checkpoint/store.h"

namespace witan {

// The reference that the run of this folder keeps; nothing: it keeps none. Throws CheckpointError if it is damaged.
std::optional<Checkpoint> kept_reference(const fs::path& run);

// Throws CheckpointError also if the run keeps none.
Checkpoint require_kept_reference(const fs::path& run);

}  // namespace witan
