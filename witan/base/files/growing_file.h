// A file that grows by appending and can be cut back to where it was known to be whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"

namespace witan {

// Not thread-safe. Throws IoError, or DiskFullError when there is no room.
class GrowingFile {
 public:
  // Opens the file as it is, or creates it. Throws IoError or DiskFullError, as all of these.
  explicit GrowingFile(fs::path path);
  // And keeps its first `size` bytes, as cut().
  GrowingFile(fs::path path, uint64_t size);
  ~GrowingFile();  // what was not flushed is dropped
  GrowingFile(GrowingFile&& other) noexcept;
  GrowingFile& operator=(GrowingFile&&) = delete;

  void append(std::string_view bytes);
  // Drops what is beyond. Throws CorruptionError if the file has fewer bytes.
  void cut(uint64_t size);
  // Hands everything to the disk, its name included: what was appended survives a kill, and a loss of power.
  void sync();

  uint64_t size() const { return size_ + buffer_.size(); }
  const fs::path& path() const { return path_; }

 private:
  void write(std::string_view bytes);
  void flush();

  fs::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;   // without the buffer
  bool named_ = false;  // its folder was flushed since it was opened
  std::string buffer_;
};

}  // namespace witan
