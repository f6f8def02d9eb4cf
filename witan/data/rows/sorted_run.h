// Rows with random keys, sorted by key in memory and written to a file: a run of an external sort.
//
// The file: 8 bytes "WITANRUN", the number of rows as u64; of each row its key as two u64, high half first, and where
// its bytes end as u64, counted from the end of this table; then the bytes of the rows, in the order of their keys.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

struct RowKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const RowKey&) const = default;
};

// A row in a buffer.
struct KeyedRow {
  RowKey key;
  uint64_t begin = 0, size = 0;
};
// Memory per row in addition to its bytes.
inline constexpr uint64_t kRowOverhead = sizeof(KeyedRow);

// Rows until they are written. Not thread-safe.
class RunBuffer {
 public:
  // `text_bytes`: how much text it is to hold, so that it does not move while it grows.
  explicit RunBuffer(uint64_t text_bytes = 0) { text_.reserve(text_bytes); }

  void add(RowKey key, std::string_view row);
  // The memory of rows and their keys.
  uint64_t bytes() const { return text_.size() + rows_.size() * kRowOverhead; }
  size_t rows() const { return rows_.size(); }
  // Writes the file, whole or not at all, and empties the buffer. Throws IoError, DiskFullError.
  void write(const fs::path& path);

 private:
  std::string text_;
  std::vector<KeyedRow> rows_;
};

// Keys are cut into this many ranges of equal size; a slice is some of them that follow each other.
inline constexpr uint32_t kKeyRanges = 1 << 16;

// Part of several runs in memory, its rows in the order of their keys.
struct RunSlice {
  std::vector<KeyedRow> rows;
  std::unique_ptr<char[]> text;

  std::string_view row(size_t i) const { return {text.get() + rows[i].begin, rows[i].size}; }
};

// Immutable; opens its files for each call. Throws IoError, CorruptionError.
class SortedRuns {
 public:
  explicit SortedRuns(std::vector<fs::path> paths) : paths_(std::move(paths)) {}

  // Memory that the rows of each range of keys take, overhead included: [kKeyRanges].
  std::vector<uint64_t> measure() const;
  // The rows whose keys are in the ranges [first, last).
  RunSlice load(uint32_t first, uint32_t last) const;

 private:
  std::vector<fs::path> paths_;
};

}  // namespace witan
