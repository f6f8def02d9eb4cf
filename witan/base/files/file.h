// Files that are not lost: whole reads, memory maps, and writes that either happen completely or not at all.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}  // as open() returned it: negative where there is none
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

// "WHAT PATH: why", where `error` is an errno. Throws DiskFullError if the disk, or the user's share of it, is full,
// and IoError otherwise.
[[noreturn]] void throw_io_error(std::string_view what, const std::filesystem::path& path, int error);

// Opens the file with these flags of open(2), or creates it. A link could lead out of the folder, and a FIFO wait for
// its other end for ever: both are refused. Returns the descriptor. Throws IoError, DiskFullError.
int open_own_file(const fs::path& path, int flags);

// Makes a file durable that others write: its bytes so far, and its name. Throws IoError, DiskFullError.
void fsync_file(const fs::path& path);

// Creates the folder and those it lies in, where they are missing; durable, so that a power failure cannot take them
// with what was made durable in them. Throws IoError, DiskFullError.
void create_folders(const fs::path& folder);

}  // namespace witan
