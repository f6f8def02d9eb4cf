// What must not be lost with the power, beside the files that are written whole (file.h).
#pragma once

#include "witan/base/files/file.h"

namespace witan {

// Makes a file durable that others write: its bytes so far, and its name. Throws IoError, DiskFullError.
void fsync_file(const fs::path& path);

// Creates the folder and those it lies in, where they are missing; durable, so that a power failure cannot take them
// with what was made durable in them. Throws IoError, DiskFullError.
void create_folders(const fs::path& folder);

}  // namespace witan
