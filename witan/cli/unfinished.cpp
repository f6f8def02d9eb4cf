#include "witan/cli/unfinished.h"

#include <utility>
#include <vector>

#include "witan/base/error.h"

namespace witan::cli {

UnfinishedFolder::UnfinishedFolder(fs::path folder, const std::string& kept)
    : folder_(std::move(folder)), mark_(folder_ / ".unfinished") {
  std::error_code none;
  if (!fs::exists(mark_, none)) return;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder_, none))
    if (entry.path().filename() != kept && entry.path() != mark_) left.push_back(entry.path());
  for (const fs::path& path : left) fs::remove_all(path, none);
  fs::remove(mark_, none);  // last: an interruption here leaves the mark
}

void UnfinishedFolder::begin() const {
  std::error_code error;
  fs::create_directories(folder_, error);
  require<IoError>(!error, "cannot create the folder ", folder_.string(), ": ", error.message());
  write_file_atomically(mark_, "");
}

void UnfinishedFolder::finish() const {
  std::error_code none;
  fs::remove(mark_, none);
}

}  // namespace witan::cli
