// A file that grows by whole records: a process that dies while it writes leaves at most one torn record at the end.
#pragma once

#include <cstdint>
#include <string_view>

#include "witan/base/files/file.h"

namespace witan {

// One writer per file at a time; not thread-safe. Throws IoError, or DiskFullError when there is no room.
class AppendFile {
 public:
  explicit AppendFile(fs::path path);  // opened, or created where it is missing
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // One write, so that readers see whole records. Where it fails, the file is as it was before.
  void append(std::string_view record);
  // Shortens the file to `size` bytes, on the disk too.
  void cut(uint64_t size);

  const fs::path& path() const { return path_; }
  uint64_t size() const { return size_; }

 private:
  fs::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace witan
