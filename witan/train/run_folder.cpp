#include "witan/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "witan/base/error.h"

namespace witan {

RunFolder::RunFolder(const fs::path& runs_folder, const std::string& name, Access access) : path_(runs_folder / name) {
  if (access == Access::share) {
    require<IoError>(fs::is_directory(path_), "cannot see the run folder ", path_.string(),
                     ", which rank 0 made: all hosts must share it");
    return;
  }
  std::error_code error;
  fs::create_directories(path_, error);
  require<IoError>(!error, "cannot create the run folder ", path_.string(), ": ", error.message());
  const fs::path lock = path_ / ".lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  require<IoError>(lock_ >= 0, "cannot write to the run folder ", path_.string(), ": ", std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw ConfigError(
        cat("another process is training ", path_.string(), ": wait for it, or pick another name with --run"));
  }
  for (const fs::path& written : {path_, path_ / "data"}) AtomicFile::remove_left_overs(written);
}

RunFolder::~RunFolder() {
  if (lock_ < 0) return;
  std::error_code none;
  const auto entries = std::distance(fs::directory_iterator(path_, none), fs::directory_iterator());
  if (!none && entries == 1) {  // the lock
    fs::remove(path_ / ".lock", none);
    fs::remove(path_, none);
  }
  ::close(lock_);
}

fs::path archive_path(const fs::path& runs_folder, const std::string& name) {
  fs::path to;
  for (int i = 1; to.empty() || fs::exists(to); ++i) to = runs_folder / cat(name, ".", i);
  return to;
}

std::optional<fs::path> archive_run(const fs::path& runs_folder, const std::string& name) {
  const fs::path from = runs_folder / name;
  if (!fs::exists(from)) return std::nullopt;
  { const RunFolder free(runs_folder, name); }  // nobody is training it
  if (!fs::exists(from)) return std::nullopt;   // nothing was in it
  const fs::path to = archive_path(runs_folder, name);
  std::error_code error;
  fs::rename(from, to, error);
  require<IoError>(!error, "cannot move ", from.string(), " to ", to.string(), ": ", error.message());
  fsync_folder(runs_folder);
  return to;
}

std::string latest_run(const fs::path& runs_folder) {
  std::error_code error;
  std::string latest;
  fs::file_time_type newest;
  for (const auto& entry : fs::directory_iterator(runs_folder, error)) {
    const auto written = fs::last_write_time(entry.path() / "config.toml", error);
    if (error || (!latest.empty() && written <= newest)) continue;
    latest = entry.path().filename();
    newest = written;
  }
  return latest;
}

}  // namespace witan
