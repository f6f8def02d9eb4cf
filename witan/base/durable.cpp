#include "witan/base/durable.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "witan/base/error.h"

namespace witan {
namespace {

[[noreturn]] void throw_not_durable(const char* what, const fs::path& path, std::error_code why) {
  if (why == std::errc::no_space_on_device || why.value() == EDQUOT)
    throw DiskFullError(
        cat(what, " ", path.string(), ": the disk is full; free some space and run the same command again"));
  throw IoError(cat(what, " ", path.string(), ": ", why.message()));
}

}  // namespace

void fsync_file(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool flushed = fd >= 0 && ::fsync(fd) == 0;
  const std::error_code why(errno, std::generic_category());
  if (fd >= 0) ::close(fd);
  if (!flushed) throw_not_durable("cannot flush", path, why);
  fsync_folder(path.parent_path());
}

void create_folders(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) return;
  const fs::path parent = folder.parent_path();
  create_folders(parent);
  const bool made = fs::create_directory(folder, error);
  if (error) throw_not_durable("cannot create the folder", folder, error);
  if (made) fsync_folder(parent);
}

}  // namespace witan
