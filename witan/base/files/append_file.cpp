#include "witan/base/files/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

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

}  // namespace witan
