#include "witan/base/files/durable.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "witan/base/error.h"
#include "witan/base/files/io_error.h"

namespace witan {
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
