#include "witan/convert/megatron/megatron_folder.h"

#include <optional>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

bool holds_checkpoint(const fs::path& folder) {
  std::error_code none;
  if (fs::is_regular_file(folder / kMegatronDistMetadata, none)) return true;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (entry.path().filename().string().starts_with("mp_rank_")) return true;
  return false;
}

constexpr const char* kRelease = "release";

// The text of latest_checkpointed_iteration.txt; nothing in the folder of a checkpoint itself.
std::optional<std::string> tracked_in(const fs::path& folder) {
  std::error_code none;
  if (holds_checkpoint(folder) || !fs::is_regular_file(folder / kMegatronTracker, none)) return std::nullopt;
  std::string text = read_file(folder / kMegatronTracker, 64);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

fs::path latest_iteration(const fs::path& folder) {
  const auto tracked = tracked_in(folder);
  if (!tracked) return folder;
  const std::string& text = *tracked;
  if (text == kRelease) return folder / text;
  require<CheckpointError>(
      !text.empty() && text.size() < 12 && text.find_first_not_of("0123456789") == std::string::npos,
      (folder / kMegatronTracker).string(), ": \"", clipped(text), "\" is not an iteration, nor \"release\"");
  return folder / cat("iter_", std::string(text.size() < 7 ? 7 - text.size() : 0, '0'), text);
}

}  // namespace

bool is_megatron_folder(const fs::path& folder) {
  std::error_code none;
  return fs::is_directory(folder, none) &&
         (fs::is_regular_file(folder / kMegatronTracker, none) || holds_checkpoint(folder));
}

bool is_megatron_release(const fs::path& folder) {
  return tracked_in(folder) == kRelease;
}

MegatronFolder::MegatronFolder(const fs::path& folder)
    : files_(latest_iteration(folder)), contents_{MegatronTensors(path().string())} {
  std::error_code none;
  require<CheckpointError>(fs::is_directory(path(), none), path().string(), " is missing, which ",
                           (folder / kMegatronTracker).string(), " names: copy that folder too");
  if (files_.has(kMegatronDistMetadata))
    read_torch_dist(files_, contents_);
  else
    read_legacy(files_, contents_);
  contents_.tensors.check();
}

PickleMembers MegatronFolder::arguments() const {
  return megatron_arguments(contents_.arguments, path().string());
}

}  // namespace witan
