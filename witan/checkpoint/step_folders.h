// Names in a checkpoint folder: "step-N" are checkpoints; hidden folders are being written or deleted.
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

inline constexpr std::string_view kUnfinished = ".tmp-step-";   // followed by N.ID: an unfinished save
inline constexpr std::string_view kRenamedAway = ".old-step-";  // followed by N.ID: a checkpoint being deleted

std::string step_folder_name(int64_t step);  // "step-300"
// The steps and their folders in `folder`, newest first, without checking them; empty if `folder` does not exist.
std::vector<std::pair<int64_t, fs::path>> step_folders(const fs::path& folder);

// Throws DiskFullError or CheckpointError: "WHAT: why".
[[noreturn]] void throw_failed(const std::string& what, std::error_code why);

// The following functions throw as throw_failed() does.
void remove_folder(const fs::path& folder);
// Removes hidden folders.
void remove_left_overs(const fs::path& folder);
// Renames a checkpoint to a hidden name, which it returns, so that it is no longer a checkpoint.
fs::path rename_away(const fs::path& step_folder);

}  // namespace witan
