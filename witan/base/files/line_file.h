// The lines of a file of any length, one after the other, in a few MiB of memory: it is read, not mapped, so that its
// pages are not the process's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"

namespace witan {

// A regular file as long as it was when it was opened. Throws IoError.
class FileToRead {
 public:
  explicit FileToRead(const fs::path& path);

  const fs::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  // Sets `out` to the bytes from `offset`; fewer than `bytes` where the file ends before.
  void read(uint64_t offset, size_t bytes, std::string& out) const;

 private:
  fs::path path_;
  Descriptor file_;
  uint64_t size_ = 0;
};

constexpr size_t kLinePieceBytes = size_t{1} << 20;  // that are held at a time, unless a line is longer

// Whole lines, without their line feeds: one that has none, at the end of the file, is left out. A line's text is valid
// until the next call.
class LinesForward {
 public:
  // `from`: the byte at which a line begins.
  explicit LinesForward(const fs::path& path, uint64_t from = 0, size_t piece_bytes = kLinePieceBytes);

  bool next();
  std::string_view line() const { return line_; }
  uint64_t offset() const { return offset_; }  // of the line in the file

 private:
  FileToRead file_;
  size_t piece_bytes_;
  std::string piece_;
  uint64_t piece_at_ = 0;  // its byte in the file
  size_t next_ = 0;        // byte of the piece at which the next line begins
  std::string_view line_;
  uint64_t offset_ = 0;
};

// Reads lines from the last to the first.
class LinesBackward {
 public:
  explicit LinesBackward(const fs::path& path, size_t piece_bytes = kLinePieceBytes);

  bool next();
  std::string_view line() const { return line_; }
  uint64_t offset() const { return offset_; }

 private:
  bool read_before();

  FileToRead file_;
  size_t piece_bytes_;
  std::string piece_;
  uint64_t piece_at_ = 0;
  size_t end_ = 0;  // of the piece: after the line feed of the next line
  std::string_view line_;
  uint64_t offset_ = 0;
};

}  // namespace witan
