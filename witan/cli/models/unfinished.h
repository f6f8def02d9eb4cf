// A folder that a command fills in one go. Meanwhile the folder contains a mark, by which the remains of a killed
// command are distinguished from files to be kept. If the command fails, the files it wrote are removed.
#pragma once

#include "witan/base/files/file.h"

namespace witan::cli {

class UnfinishedFolder {
 public:
  // Removes the remains of a killed command from `folder`, except `kept`. The folder need not exist.
  explicit UnfinishedFolder(fs::path folder, std::string kept = "");
  ~UnfinishedFolder();  // unless finish() was called, removes the new files, and the folder if begin() created it
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  void begin();   // creates the folder and the mark; throws IoError
  void finish();  // removes the mark

 private:
  void clear() const;

  fs::path folder_, mark_;
  std::string kept_;
  bool unfinished_ = false, made_ = false;  // made_: begin() created the folder
};

}  // namespace witan::cli
