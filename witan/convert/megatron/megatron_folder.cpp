#include "witan/convert/megatron/megatron_folder.h"

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

fs::path latest_iteration(const fs::path& folder) {
  std::error_code none;
  if (holds_checkpoint(folder) || !fs::is_regular_file(folder / kMegatronTracker, none)) return folder;
  std::string text = read_file(folder / kMegatronTracker, 64);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text == "release") return folder / text;
  require<CheckpointError>(
      !text.empty() && text.size() < 12 && text.find_first_not_of("0123456789") == std::string::npos,
      (folder / kMegatronTracker).string(), ": \"", clipped(text), "\" is no iteration");
  return folder / cat("iter_", std::string(text.size() < 7 ? 7 - text.size() : 0, '0'), text);
}

}  // namespace

bool is_megatron_folder(const fs::path& folder) {
  std::error_code none;
  return fs::is_directory(folder, none) &&
         (fs::is_regular_file(folder / kMegatronTracker, none) || holds_checkpoint(folder));
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
