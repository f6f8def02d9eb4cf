// A file for what does not fit in memory. It has no name: it is gone with the process, however that ends.
#pragma once

#include <cstdint>
#include <string>

#include "witan/base/files/file.h"

namespace witan {

// Not thread-safe.
class SpillFile {
 public:
  // On the disk of `folder`. Throws IoError.
  explicit SpillFile(fs::path folder);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Throws IoError, or DiskFullError that names the folder and --temporary.
  void append(const void* data, size_t bytes);
  uint64_t size() const { return written_ + buffer_.size(); }
  // Fills `out` with the bytes from `offset` on, which must have been appended.
  void read(uint64_t offset, void* out, size_t bytes);

 private:
  void flush();
  [[noreturn]] void fail(const char* what) const;

  fs::path folder_;
  int fd_ = -1;
  uint64_t written_ = 0;
  std::string buffer_;
};

}  // namespace witan
