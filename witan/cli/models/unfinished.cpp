#include "witan/cli/models/unfinished.h"

#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan::cli {

UnfinishedFolder::UnfinishedFolder(fs::path folder, std::string kept)
    : folder_(std::move(folder)), mark_(folder_ / ".unfinished"), kept_(std::move(kept)) {
  std::error_code none;
  if (fs::exists(mark_, none)) clear();
}

UnfinishedFolder::~UnfinishedFolder() {
  if (unfinished_) clear();
}

void UnfinishedFolder::clear() const {
  std::error_code none;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder_, none))
    if (entry.path().filename() != kept_ && entry.path() != mark_) left.push_back(entry.path());
  for (const fs::path& path : left) fs::remove_all(path, none);
  fs::remove(mark_, none);  // last, so that the mark stays if this process is killed here
  if (made_) fs::remove(folder_, none);
}

void UnfinishedFolder::begin() {
  std::error_code error;
  made_ = !fs::exists(folder_, error);
  create_folders(folder_);
  unfinished_ = true;
  write_file_atomically(mark_, "");
}

void UnfinishedFolder::finish() {
  std::error_code none;
  fs::remove(mark_, none);
  unfinished_ = false;
}

}  // namespace witan::cli
