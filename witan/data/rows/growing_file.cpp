#include "witan/data/rows/growing_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "witan/base/error.h"

namespace witan {
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

GrowingFile::GrowingFile(fs::path path, uint64_t size) : path_(std::move(path)), size_(size) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_growing_errno("cannot open", path_);
  struct stat status {};
  if (::fstat(fd_, &status) != 0) throw_growing_errno("cannot read", path_);
  require<CorruptionError>(static_cast<uint64_t>(status.st_size) >= size, path_.string(), " has ", status.st_size,
                           " bytes, and ", size, " were written: remove its folder to begin anew");
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0 || ::lseek(fd_, 0, SEEK_END) < 0)
    throw_growing_errno("cannot shorten", path_);
}

GrowingFile::~GrowingFile() {
  if (fd_ >= 0) ::close(fd_);
}

GrowingFile::GrowingFile(GrowingFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      buffer_(std::move(other.buffer_)) {}

void GrowingFile::append(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kGrowingBuffer) {
    write(buffer_);
    buffer_.clear();
  }
  if (bytes.size() >= kGrowingBuffer)
    write(bytes);
  else
    buffer_ += bytes;
}

void GrowingFile::sync() {
  write(buffer_);
  buffer_.clear();
  if (::fdatasync(fd_) != 0) throw_growing_errno("cannot flush", path_);
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
