#include "witan/base/files/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr size_t kBufferBytes = 1 << 18;
constexpr std::string_view kTemporary = ".tmp-";
constexpr size_t kReadBytes = 1 << 16;

void write_all(int fd, const char* data, size_t bytes, const fs::path& path) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_io_error("cannot write", path, errno);
    data += n;
    bytes -= static_cast<size_t>(n);
  }
}

// Whether the path is one by which programs and shells pass a pipe on purpose: /dev/stdin, or /dev/fd/63 for <(...).
bool is_meant_as_pipe(const fs::path& path) {
  return path.native().starts_with("/dev/") || path.native().starts_with("/proc/");
}

}  // namespace

std::string read_file(const fs::path& path, uint64_t limit) {
  // Opening a FIFO must not wait for a writer, which may never come.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!file.is_open()) throw_io_error("cannot open", path, errno);
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw_io_error("cannot read", path, errno);
  require<IoError>(!S_ISDIR(status.st_mode), "cannot read ", path.string(), ": it is a folder");
  require<IoError>(S_ISREG(status.st_mode) || is_meant_as_pipe(path), "cannot read ", path.string(),
                   ": it is a pipe or a device, not a regular file; put a file in its place");
  if (!S_ISREG(status.st_mode) && ::fcntl(file.fd(), F_SETFL, 0) != 0) throw_io_error("cannot read", path, errno);
  const auto expected = static_cast<size_t>(status.st_size);  // a hint: zero for pipes and /proc
  std::string text;
  for (;;) {
    const size_t have = text.size();
    require<IoError>(std::max<uint64_t>(have, expected) <= limit, "cannot read ", path.string(),
                     ": larger than the limit of ", limit, " bytes");
    text.resize(std::max(expected + 1, have + kReadBytes));
    const ssize_t n = ::read(file.fd(), text.data() + have, text.size() - have);
    if (n < 0 && errno != EINTR) throw_io_error("cannot read", path, errno);
    text.resize(have + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return text;
  }
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  static std::atomic<unsigned> serial{0};  // distinct names for ranks that share a process
  do {
    temporary_ = path_.parent_path() / cat(kTemporary, path_.filename().string(), ".", ::getpid(), ".", serial++);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (fd_ < 0 && errno == EEXIST);  // left by a killed process of the same id, as in a restarted container
  if (fd_ < 0) throw_io_error("cannot create", path_, errno);  // the final name
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  written_ += bytes;
  if (buffer_.size() + bytes > kBufferBytes) flush();
  if (bytes >= kBufferBytes)
    write_all(fd_, static_cast<const char*>(data), bytes, path_);
  else
    buffer_.append(static_cast<const char*>(data), bytes);
}

void AtomicFile::flush() {
  write_all(fd_, buffer_.data(), buffer_.size(), path_);
  buffer_.clear();
}

void AtomicFile::commit(NameFlush name) {
  flush();
  if (::fsync(fd_) != 0) throw_io_error("cannot flush", path_, errno);
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    throw_io_error("cannot finish", path_, errno);
  }
  if (name == NameFlush::now) fsync_folder(path_.parent_path());
}

void AtomicFile::remove_left_overs(const fs::path& folder) {
  std::error_code none;  // files that cannot be removed do no harm
  std::vector<fs::path> left;
  for (const auto& item : fs::directory_iterator(folder, none))
    if (item.path().filename().string().starts_with(kTemporary) && item.is_regular_file(none))
      left.push_back(item.path());
  for (const fs::path& path : left) fs::remove(path, none);
}

void write_file_atomically(const fs::path& path, std::string_view text, NameFlush name) {
  AtomicFile file(path);
  file.write(text);
  file.commit(name);
}

void fsync_folder(const fs::path& folder) {
  const fs::path target = folder.empty() ? fs::path(".") : folder;
  const Descriptor file{::open(target.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!file.is_open() || ::fsync(file.fd()) != 0) throw_io_error("cannot flush the folder", target, errno);
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // a FIFO must not block, but fail
  if (!file.is_open()) throw_io_error("cannot open", path, errno);
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw_io_error("cannot read", path, errno);
  require<IoError>(S_ISREG(status.st_mode), "cannot map ", path.string(), ": it is not a regular file");
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED) throw_io_error("cannot map", path, errno);
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

uint64_t free_disk_bytes(const fs::path& folder) {
  std::error_code error;
  const auto space = fs::space(folder.empty() ? fs::path(".") : folder, error);
  errno = error.value();
  if (error) throw_io_error("cannot tell the free space of", folder, error.value());
  return space.available;
}

void throw_io_error(std::string_view what, const std::filesystem::path& path, int error) {
  if (error == ENOSPC || error == EDQUOT)
    throw DiskFullError(
        cat(what, " ", path.string(), ": the disk is full; free some space and run the same command again"));
  throw IoError(cat(what, " ", path.string(), ": ", std::strerror(error)));
}

int open_own_file(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  require<IoError>(fd >= 0 || errno != ELOOP, "cannot open ", path.string(),
                   ": it is a link, and what is recorded stays in its folder; remove the link");
  struct stat status {};
  const bool known = fd >= 0 ? ::fstat(fd, &status) == 0 : errno == ENXIO && ::stat(path.c_str(), &status) == 0;
  if (known && S_ISFIFO(status.st_mode)) {
    if (fd >= 0) ::close(fd);
    throw IoError(cat("cannot open ", path.string(), ": it is a pipe, not a regular file; remove it"));
  }
  if (fd < 0) throw_io_error("cannot open", path, errno);
  return fd;
}

void fsync_file(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool flushed = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!flushed) throw_io_error("cannot flush", path, error);
  fsync_folder(path.parent_path());
}

void create_folders(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) return;
  const fs::path parent = folder.parent_path();
  create_folders(parent);
  const bool made = fs::create_directory(folder, error);
  if (error == std::errc::file_exists)
    throw IoError(cat("cannot create the folder ", folder.string(), ": a file of this name is there"));
  if (error) throw_io_error("cannot create the folder", folder, error.value());
  if (made) fsync_folder(parent);
}

}  // namespace witan
