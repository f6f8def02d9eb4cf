// Measures the speed of a folder's disk.
#pragma once

#include <cstdint>

#include "witan/base/files/file.h"

namespace witan::cli {

struct DiskSpeed {
  uint64_t free = 0;             // bytes
  double fsync_s = 0;            // median of a few: one small write made durable
  double write_bytes_per_s = 0;  // of one larger file, made durable
};

// Writes about 64 MiB into a temporary file in `folder` (less on a nearly full disk) and removes it. Throws IoError, or
// DiskFullError if there is no space at all.
DiskSpeed measure_disk(const fs::path& folder);

}  // namespace witan::cli
