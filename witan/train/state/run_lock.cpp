#include "witan/train/state/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

fs::path lock_of(const fs::path& run_folder) {
  return run_folder / ".lock";
}

}  // namespace

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
  // is_training() of another process holds it for microseconds.
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
