#include "witan/base/files/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "witan/base/error.h"
#include "witan/base/files/io_error.h"

namespace witan {

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

}  // namespace witan
