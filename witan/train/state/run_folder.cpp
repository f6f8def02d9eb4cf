#include "witan/train/state/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/train/config/config.h"

namespace witan {
namespace {

// A fixed name, so that the next staged start finds what an early end has left.
fs::path stage_path(const fs::path& run) {
  return run.parent_path() / cat(".", run.filename().string(), ".fresh");
}

fs::path lock_of(const fs::path& run_folder) {
  return run_folder / ".lock";
}

}  // namespace

RunFolder::RunFolder(const fs::path& runs_folder, const std::string& name, Access access)
    : place_(runs_folder / name), path_(access == Access::stage ? stage_path(place_) : place_) {
  if (access == Access::share) {
    require<IoError>(fs::is_directory(path_), "cannot find the run folder ", path_.string(),
                     ", which rank 0 created: it must be on a file system that all hosts share");
    return;
  }
  check_new_name(runs_folder, name);
  create_folders(path_);
  lock_ = RunLock::take(path_);
  require<ConfigError>(lock_.has_value(), "another process trains or imports ", place_.string(),
                       ": wait for it, or pick another name with --run");
  for (const fs::path& written : {path_, path_ / "data"}) AtomicFile::remove_left_overs(written);
}

void check_new_name(const fs::path& runs_folder, const std::string& name) {
  std::error_code none;
  fs::path path = fs::path(name).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  require<ConfigError>(name.find('/') == std::string::npos, "run = \"", name,
                       "\" must be a name without slashes: give --run ", shell_word(path.filename().string()),
                       " --runs-folder ", shell_word((runs_folder / path).lexically_normal().parent_path().string()));
  const bool known = fs::exists(runs_folder / name / "config.toml", none);
  require<ConfigError>(known || name.find('@') == std::string::npos, "run = \"", name,
                       "\": a new run's name has no @, which separates a run from its checkpoint, as in mine@best or "
                       "mine@300; pick another name with --run");
  require<ConfigError>(known || !name.starts_with('.'), "run = \"", name,
                       "\": a new run's name does not begin with a dot, since commands that list runs skip hidden "
                       "folders; pick another name with --run");
}

RunFolder::~RunFolder() {
  if (!lock_) return;
  std::error_code none;
  if (!fs::exists(config(), none)) fs::remove(path_ / "data", none);  // fails if it is not empty
  if (!empty()) return;
  lock_->remove_file(path_);
  fs::remove(path_, none);
}

bool RunFolder::empty() const {
  std::error_code unknown;
  const auto entries = std::distance(fs::directory_iterator(path_, unknown), fs::directory_iterator());
  return !unknown && entries == 1;
}

void RunFolder::move_to(const fs::path& path) {
  std::error_code error;
  fs::rename(path_, path, error);
  require<IoError>(!error, "cannot move ", path_.string(), " to ", path.string(), ": ", error.message());
  path_ = path;
}

fs::path RunFolder::replace(RunFolder& old) {
  const fs::path runs_folder = place_.parent_path();
  old.move_to(archive_path(runs_folder, place_.filename().string()));
  try {
    move_to(place_);
  } catch (const IoError&) {
    old.move_to(place_);
    throw;
  }
  fsync_folder(runs_folder);
  return old.path();
}

fs::path archive_path(const fs::path& runs_folder, const std::string& name) {
  fs::path to;
  for (int i = 1; to.empty() || fs::exists(to); ++i) to = runs_folder / cat(name, ".", i);
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

std::string flags_of_run(const fs::path& folder) {
  const fs::path runs = folder.parent_path();
  const std::string name = shell_word(folder.filename().string());
  return runs.lexically_normal() == RunConfig().train.runs_folder
             ? name
             : cat(name, " --runs-folder ", shell_word(runs.string()));
}

std::optional<RunLock> RunLock::take(const fs::path& run_folder) {
  const int fd = ::open(lock_of(run_folder).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) {
    const int why = errno;
    const std::string what = cat("cannot write to the run folder ", run_folder.string(), ": ", std::strerror(why), " (",
                                 lock_of(run_folder).filename().string(), ")");
    if (why == ENOSPC || why == EDQUOT) throw DiskFullError(what);
    throw IoError(what);
  }
  RunLock lock(fd);
  // is_training() of another process may hold the lock for microseconds.
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return std::nullopt;
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

RunLock::RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void RunLock::remove_file(const fs::path& run_folder) const {
  std::error_code none;
  fs::remove(lock_of(run_folder), none);
}

bool is_training(const fs::path& run_folder) {
  std::error_code error;
  if (!fs::is_regular_file(lock_of(run_folder), error)) return false;
  const int fd = ::open(lock_of(run_folder).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

}  // namespace witan
