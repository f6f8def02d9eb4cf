// The names below a folder of checkpoints: "step-N" are checkpoints; hidden ones are on their way in or out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "witan/base/file.h"

namespace witan {

inline constexpr std::string_view kUnfinished = ".tmp-step-";   // N.ID: a save that has not ended
inline constexpr std::string_view kRenamedAway = ".old-step-";  // N.ID: a checkpoint that is being deleted

std::string step_folder_name(int64_t step);  // "step-300"
// The steps and folders of `folder`, newest first; nothing when it does not exist. Whether they are whole is not asked.
std::vector<std::pair<int64_t, fs::path>> step_folders(const fs::path& folder);

// Throws DiskFullError or CheckpointError: "WHAT: why".
[[noreturn]] void throw_failed(const std::string& what, std::error_code why);

// These throw as throw_failed does.
void remove_folder(const fs::path& folder);
// Removes hidden folders.
void remove_left_overs(const fs::path& folder);
// Gives a checkpoint a hidden name, and returns it. From then on it is no checkpoint.
fs::path rename_away(const fs::path& step_folder);

}  // namespace witan
