// Files that are not lost: whole reads, memory maps, and writes that either happen completely or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace witan {

namespace fs = std::filesystem;

// Reads the whole file. Throws IoError when it cannot be read or is larger than `limit` bytes.
std::string read_file(const fs::path& path, uint64_t limit = uint64_t{1} << 32);

// Whether a file's name is made durable with it, or by a later fsync_folder(), before which nothing relies on it.
enum class NameFlush : uint8_t { now, later };

// A file written under a temporary name in the same folder; commit() makes it appear under `path`, whole and durable
// (write, fsync, rename, fsync folder). Without commit() the temporary file is removed.
// Throws IoError, or DiskFullError when there is no room.
class AtomicFile {
 public:
  explicit AtomicFile(fs::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t written() const { return written_; }
  void commit(NameFlush name = NameFlush::now);

  // Removes the temporary files in `folder` that killed processes left. Nobody may be writing there.
  static void remove_left_overs(const fs::path& folder);

 private:
  void flush();

  fs::path path_, temporary_;
  int fd_ = -1;
  uint64_t written_ = 0;
  std::string buffer_;
};

void write_file_atomically(const fs::path& path, std::string_view text, NameFlush name = NameFlush::now);

// Makes durable what names there are in `folder`: files that were made, renamed or removed.
void fsync_folder(const fs::path& folder);

// A whole file mapped read-only. An empty file maps to an empty span. Throws IoError.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes a non-root user may still write below `folder`.
uint64_t free_disk_bytes(const fs::path& folder);

}  // namespace witan
