// Whether a disk has room for what a command is about to write.
#pragma once

#include <cstdint>
#include <string>

#include "witan/base/files/file.h"

namespace witan {

// Throws DiskFullError unless the disk of `folder` has room for `bytes` of `what`, counting what the folder itself
// holds already: an earlier part of the same work.
void require_room(const fs::path& folder, uint64_t bytes, const std::string& what, const std::string& way_out = "");

bool on_one_disk(const fs::path& a, const fs::path& b);

}  // namespace witan
