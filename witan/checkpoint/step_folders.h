// Names in a checkpoint folder: "step-N" are checkpoints; hidden ones are being written or deleted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

inline constexpr std::string_view kUnfinished = ".tmp-step-";   // N.ID: an unfinished save
inline constexpr std::string_view kRenamedAway = ".old-step-";  // N.ID: a checkpoint that is being deleted

std::string step_folder_name(int64_t step);  // "step-300"
// The steps and folders in `folder`, newest first; empty if it does not exist. They are not checked.
std::vector<std::pair<int64_t, fs::path>> step_folders(const fs::path& folder);

// Throws DiskFullError or CheckpointError: "WHAT: why".
[[noreturn]] void throw_failed(const std::string& what, std::error_code why);

// These throw as throw_failed does.
void remove_folder(const fs::path& folder);
// Removes hidden folders.
void remove_left_overs(const fs::path& folder);
// Gives a checkpoint a hidden name, and returns it. It is then no longer a checkpoint.
fs::path rename_away(const fs::path& step_folder);

}  // namespace witan
