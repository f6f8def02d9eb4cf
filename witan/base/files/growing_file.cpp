#include "witan/base/files/growing_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
AppendFile::AppendFile(fs::path path) : path_(std::move(path)) {
  fd_ = open_own_file(path_, O_WRONLY | O_APPEND);
  struct stat status {};
  if (::fstat(fd_, &status) == 0) size_ = static_cast<uint64_t>(status.st_size);
}

AppendFile::~AppendFile() {
  ::close(fd_);
}

void AppendFile::append(std::string_view record) {
  for (size_t done = 0; done < record.size();) {
    const ssize_t n = ::write(fd_, record.data() + done, record.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      const int error = errno;
      // Should this fail too, the torn record is what readers are used to.
      if (done > 0) [[maybe_unused]]
        const int cut = ::ftruncate(fd_, static_cast<off_t>(size_));
      throw_io_error("cannot append to", path_, error);
    }
  }
  size_ += record.size();
}

void AppendFile::cut(uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0 || ::fsync(fd_) != 0)
    throw_io_error("cannot shorten", path_, errno);
  size_ = size;
}

namespace {

constexpr size_t kGrowingBuffer = 1 << 18;

[[noreturn]] void throw_growing_errno(const char* what, const fs::path& path) {
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT)
    throw DiskFullError(
        cat(what, " ", path.string(), ": the disk is full; free some space and give the same command to continue"));
  throw IoError(cat(what, " ", path.string(), ": ", std::strerror(error)));
}

}  // namespace

GrowingFile::GrowingFile(fs::path path) : path_(std::move(path)) {
  fd_ = open_own_file(path_, O_WRONLY | O_APPEND);
  size_ = fs::file_size(path_);
}

GrowingFile::GrowingFile(fs::path path, uint64_t size) : GrowingFile(std::move(path)) {
  cut(size);
}

GrowingFile::~GrowingFile() {
  if (fd_ >= 0) ::close(fd_);
}

GrowingFile::GrowingFile(GrowingFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      named_(other.named_),
      buffer_(std::move(other.buffer_)) {}

void GrowingFile::append(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kGrowingBuffer) flush();
  if (bytes.size() >= kGrowingBuffer)
    write(bytes);
  else
    buffer_ += bytes;
}

void GrowingFile::flush() {
  write(buffer_);
  buffer_.clear();
}

void GrowingFile::cut(uint64_t size) {
  flush();
  require<CorruptionError>(size <= size_, path_.string(), " has ", size_, " bytes, and ", size,
                           " were written: remove what is unfinished beside it to begin anew");
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) throw_growing_errno("cannot shorten", path_);
  size_ = size;
}

void GrowingFile::sync() {
  flush();
  if (::fdatasync(fd_) != 0) throw_growing_errno("cannot flush", path_);
  if (!std::exchange(named_, true)) fsync_folder(path_.parent_path());
}

void GrowingFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_growing_errno("cannot write", path_);
    size_ += static_cast<uint64_t>(n);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace witan
