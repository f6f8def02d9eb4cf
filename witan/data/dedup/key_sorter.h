// Sorts keys of documents, in memory as far as that goes and through a temporary file beyond (an external merge sort:
// Knuth, The Art of Computer Programming, volume 3, section 5.4).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

// Not thread-safe.
class SpillFile {
 public:
  // Creates the file in `folder`. Throws IoError.
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

// A hash by which documents are compared.
struct DocumentKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const DocumentKey&) const = default;
};

struct KeyedDocument {
  DocumentKey key;
  int64_t document = 0;
  auto operator<=>(const KeyedDocument&) const = default;
};

// The order is that of the values: it depends neither on the order in which they are added nor on the memory. Not
// thread-safe.
class KeySorter {
 public:
  // Holds at most `memory` bytes, but at least 64 KiB. Makes its temporary file in `folder` when it needs one.
  KeySorter(fs::path folder, uint64_t memory);
  ~KeySorter();

  // Only before the first next(). Throws IoError, DiskFullError.
  void add(const KeyedDocument& item);
  // The next in ascending order; false at the end.
  bool next(KeyedDocument& item);

  int64_t size() const { return size_; }
  uint64_t spilled() const { return spill_ ? spill_->size() : 0; }  // bytes on disk

 private:
  struct Run;
  void spill();
  void begin();

  fs::path folder_;
  size_t most_;  // items in memory
  std::vector<KeyedDocument> items_;
  std::unique_ptr<SpillFile> spill_;
  std::vector<std::pair<uint64_t, int64_t>> spilled_runs_;  // offset and items of each
  std::vector<std::unique_ptr<Run>> heap_;                  // the run with the least item first
  int64_t size_ = 0;
  size_t at_ = 0;  // in items_, where all are in memory
  bool reading_ = false;
};

}  // namespace witan
