// A folder that a command fills at once. While it does, a mark stands in the folder, so that what a killed command left
// is told from what somebody wants to keep; where it fails, what it wrote is removed.
#pragma once

#include "witan/base/files/file.h"

namespace witan::cli {

class UnfinishedFolder {
 public:
  // Removes what a killed command left in `folder`, all but `kept`; the folder may be missing.
  explicit UnfinishedFolder(fs::path folder, std::string kept = "");
  ~UnfinishedFolder();  // removes what was written since begin(), and a folder it made, unless finish() was called
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  void begin();   // creates the folder and the mark; throws IoError
  void finish();  // removes the mark

 private:
  void clear() const;

  fs::path folder_, mark_;
  std::string kept_;
  bool unfinished_ = false, made_ = false;  // the folder, by begin()
};

}  // namespace witan::cli
