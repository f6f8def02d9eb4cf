// Bytes of a file at any place, and a window that moves over a part of them. Files are read, not mapped: memory stays
// that of the window whatever the file's size, and a file that shrinks is an error instead of a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::tables {

class RandomAccess {
 public:
  virtual ~RandomAccess() = default;
  virtual uint64_t size() const = 0;
  // Fills `out` from byte `at` on. Throws IoError, also when the file ends before.
  virtual void read(uint64_t at, std::span<char> out) const = 0;
};

// Throws IoError.
std::unique_ptr<RandomAccess> open_file(const fs::path& path);
// `bytes` must outlive it.
std::unique_ptr<RandomAccess> open_memory(std::string_view bytes);

// Consecutive bytes, some of them in memory. Not thread-safe; keeps a reference to the file.
class Window {
 public:
  // A window of the bytes [begin, end), which must lie in the file.
  Window(const RandomAccess& file, uint64_t begin, uint64_t end) : file_(file), at_(begin), end_(end) {}

  // The next `bytes` bytes, fewer only at the end; valid until the next peek().
  std::string_view peek(uint64_t bytes);
  // `bytes` is at most left().
  void skip(uint64_t bytes);

  uint64_t position() const { return at_; }
  uint64_t left() const { return end_ - at_; }

 private:
  const RandomAccess& file_;
  uint64_t at_, end_;
  std::vector<char> block_;
  size_t from_ = 0, have_ = 0;  // bytes [at_, at_ + have_ - from_) of the file are block_[from_, have_)
};

}  // namespace witan::tables
