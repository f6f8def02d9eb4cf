// Files as streams of bytes, plain, gzip (RFC 1952) or zstd (RFC 8878), in constant memory whatever their expanded
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

// Not thread-safe.
class ByteReader {
 public:
  virtual ~ByteReader() = default;

  // Puts up to `bytes` (> 0) decompressed bytes at `out` and returns their number; 0 only at the end.
  // Throws IoError, or CorruptionError naming file and compressed offset for damaged or truncated archives.
  virtual size_t read(char* out, size_t bytes) = 0;

  // Bytes of the file itself read so far, the measure of progress.
  virtual uint64_t offset() const = 0;
};

// Opens a file. The first bytes determine its format; a name in .gz or .zst that contradicts them is a CorruptionError.
// Several gzip members or zstd frames are read as one stream. zstd windows above 128 MiB are refused.
std::unique_ptr<ByteReader> open_bytes(const fs::path& path);

// Whether the file's first bytes say that open_bytes() would decompress it. Throws IoError.
bool is_compressed(const fs::path& path);

// Not thread-safe. Keeps a reference to `reader`.
class LineReader {
 public:
  LineReader(ByteReader& reader, uint64_t most_bytes);

  // Advances to the next line; false at the end. The last line may lack its newline. Throws what the reader throws.
  bool next();

  // The line without "\n" or "\r\n"; of an over-long line the first `most_bytes` bytes. Valid until next().
  std::string_view text() const { return line_; }
  bool too_long() const { return too_long_; }
  int64_t number() const { return number_; }  // from 1

 private:
  ByteReader& reader_;
  uint64_t most_bytes_;
  std::vector<char> block_;
  size_t begin_ = 0, end_ = 0;
  std::string line_;
  bool too_long_ = false;
  int64_t number_ = 0;
};

}  // namespace witan
