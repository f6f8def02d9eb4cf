// Collects unusable rows: all are counted, the first ones are stored in a file. docs/formats/jsonl.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "witan/base/files/output_file.h"

namespace witan {

struct QuarantineLimits {
  int64_t rows = 1000;
  uint64_t bytes = 16 << 20;     // of the file
  uint64_t row_bytes = 4 << 10;  // stored of one row
};

// The rows collected so far. A quarantine constructed with a state continues from there.
struct QuarantineState {
  int64_t count = 0, kept = 0;
  std::string first = {};
  std::shared_ptr<const std::string> rows = {};  // the lines of the file; null: none
};

// The file as an output of a command: only an earlier one is replaced.
OutputFile quarantine_file(fs::path path);

// One JSON line per row: {"source", "line", "reason", "row"}; they stay in memory until close(). Not thread-safe.
class Quarantine {
 public:
  // Nothing is written until the first row; an empty path only counts.
  explicit Quarantine(fs::path path, QuarantineLimits limits = {}, QuarantineState before = {});

  // Throws IoError or DiskFullError.
  void add(const fs::path& source, int64_t line, std::string_view reason, std::string_view row);
  // Publishes the file; without rows, removes the file of an earlier run.
  void close();

  const QuarantineState& state() const { return state_; }
  int64_t count() const { return state_.count; }
  int64_t kept() const { return state_.kept; }
  // "FILE:LINE: reason" of the first row, for messages.
  const std::string& first() const { return state_.first; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  QuarantineLimits limits_;
  QuarantineState state_;
};

}  // namespace witan
