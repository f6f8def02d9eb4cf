// Collects unusable rows: all are counted, the first ones are stored in a file. docs/formats/jsonl.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "witan/base/file.h"

namespace witan {

struct QuarantineLimits {
  int64_t rows = 1000;
  uint64_t bytes = 16 << 20;     // of the file
  uint64_t row_bytes = 4 << 10;  // stored of one row
};

// One JSON line per row: {"source", "line", "reason", "row"}. Not thread-safe.
class Quarantine {
 public:
  // Nothing is written until the first row; an empty path only counts.
  explicit Quarantine(fs::path path, QuarantineLimits limits = {});
  ~Quarantine();

  // Throws IoError or DiskFullError.
  void add(const fs::path& source, int64_t line, std::string_view reason, std::string_view row);
  // Publishes the file; without rows, removes the file of an earlier run.
  void close();

  int64_t count() const { return count_; }
  int64_t kept() const { return kept_; }
  // "FILE:LINE: reason" of the first row, for messages.
  const std::string& first() const { return first_; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  QuarantineLimits limits_;
  std::unique_ptr<AtomicFile> file_;
  int64_t count_ = 0, kept_ = 0;
  std::string first_;
};

}  // namespace witan
