// Files as streams of bytes, plain, gzip (RFC 1952) or zstd (RFC 8878), in constant memory whatever their expanded
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

}  // namespace witan
