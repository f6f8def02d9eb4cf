// Folders that a command fills at once: while it does, a mark stands in them, so that what an interrupted one left is
// told from what somebody wants to keep.
#pragma once

#include "witan/base/file.h"

namespace witan::cli {

class UnfinishedFolder {
 public:
  // Takes away what an interrupted command left in `folder`, all but `kept`; the folder may be missing.
  explicit UnfinishedFolder(fs::path folder, const std::string& kept = "");

  void begin() const;   // creates the folder and the mark; throws IoError
  void finish() const;  // removes the mark

 private:
  fs::path folder_, mark_;
};

}  // namespace witan::cli
