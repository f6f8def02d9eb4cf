// Runs that `witan import` made, before anything is trained in them.
#pragma once

#include "witan/base/files/file.h"

namespace witan::cli {

// Whether `witan import` made the run.
bool has_imported_weights(const fs::path& run);
// Whether a run has weights of another program and nothing else: no text, no steps.
bool is_imported_only(const fs::path& run);

}  // namespace witan::cli
