// Files that Witan keeps in its folders: records that grow, and locks.
#pragma once

#include "witan/base/files/file.h"

namespace witan {

// Opens the file with these flags of open(2), or creates it. A link could lead out of the folder, and a FIFO wait for
// its other end for ever: both are refused. Returns the descriptor. Throws IoError, DiskFullError.
int open_own_file(const fs::path& path, int flags);

}  // namespace witan
