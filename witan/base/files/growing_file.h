// Files that grow by appending: record by record, or buffered and cut back after a failure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"

namespace witan {

// A file that grows by whole records. A process that dies while it writes leaves at most one torn record at the end.
// One writer per file at a time; not thread-safe. Throws IoError, or DiskFullError when there is no room.
class AppendFile {
 public:
  explicit AppendFile(fs::path path);  // opens the file, or creates it
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Appends by a single write, so that readers see whole records. If it fails, the file is as it was before.
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

// A file that grows by buffered appends and can be cut back to where it was known to be whole. Not thread-safe. Throws
// IoError, or DiskFullError when there is no room.
class GrowingFile {
 public:
  // Opens the file as it is, or creates it.
  explicit GrowingFile(fs::path path);
  // Opens the file and cuts it to its first `size` bytes, like cut().
  GrowingFile(fs::path path, uint64_t size);
  ~GrowingFile();  // what was not flushed is dropped
  GrowingFile(GrowingFile&& other) noexcept;
  GrowingFile& operator=(GrowingFile&&) = delete;

  void append(std::string_view bytes);
  // Drops the bytes beyond `size`. Throws CorruptionError if the file has fewer.
  void cut(uint64_t size);
  // Flushes the file and its name to the disk, so that all appended bytes survive a kill and a loss of power.
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
