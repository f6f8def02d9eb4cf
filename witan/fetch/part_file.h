// An incomplete file. NAME.part has the final size, with every byte at its final offset, and NAME.ranges records which
// bytes are there: a line "BEGIN END" per range, appended after its bytes are written. A killed process loses only what
// it had not recorded. Whether the bytes are correct is checked by digest, which also detects bytes that a power
// failure left unwritten.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/files/growing_file.h"
#include "witan/base/threads/mutex.h"
#include "witan/fetch/http.h"

namespace witan::fetch {

// Thread-safe: ranges are written and recorded by any thread. Throws IoError, or DiskFullError if the disk is full.
class PartFile {
 public:
  // Opens NAME.part in `folder`, or creates it. Discards the part of a file of another size.
  PartFile(const fs::path& folder, const std::string& name, uint64_t size);
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  // What is not there yet, in order.
  std::vector<ByteRange> missing() const;
  void write(uint64_t offset, std::string_view bytes) const;
  void record(ByteRange range);
  // Forgets everything: the bytes were wrong.
  void clear();
  // Gives the whole file its name, durably.
  void finish(const fs::path& target);

  const fs::path& path() const { return path_; }

  // The bytes of it that are there, without opening it for writing.
  static uint64_t bytes_there(const fs::path& folder, const std::string& name, uint64_t size);

 private:
  fs::path path_, journal_path_;
  uint64_t size_;
  Descriptor file_;
  mutable Mutex mutex_;
  std::optional<AppendFile> journal_ WITAN_GUARDED_BY(mutex_);
  std::vector<ByteRange> done_ WITAN_GUARDED_BY(mutex_);  // apart from each other, in order
};

// Creates a folder and those above it, where they are missing. Throws IoError.
void create_folders(const fs::path& folder);

}  // namespace witan::fetch
