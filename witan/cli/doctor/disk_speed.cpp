#include "witan/cli/doctor/disk_speed.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "witan/base/error.h"

namespace witan::cli {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A file without a name, or with one that is removed at once: nothing stays behind, however the process ends.
class ScratchFile {
 public:
  explicit ScratchFile(const fs::path& folder) : folder_(folder) {
    std::string name = (folder / ".witan-disk-XXXXXX").string();
    fd_ = ::mkstemp(name.data());
    if (fd_ < 0) fail("create a file");
    ::unlink(name.c_str());
  }
  ~ScratchFile() { ::close(fd_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  void write(const std::vector<char>& bytes) {
    if (::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) fail("write");
  }
  void sync() {
    if (::fsync(fd_) != 0) fail("flush");
  }

 private:
  [[noreturn]] void fail(const char* action) const {
    const std::string message = cat("cannot ", action, " in ", folder_.string(), ": ", std::strerror(errno));
    if (errno == ENOSPC || errno == EDQUOT) throw DiskFullError(message);
    throw IoError(message);
  }

  fs::path folder_;
  int fd_ = -1;
};

}  // namespace

DiskSpeed measure_disk(const fs::path& folder) {
  constexpr size_t kPiece = 1 << 20, kPieces = 64;
  DiskSpeed speed;
  speed.free = free_disk_bytes(folder);
  ScratchFile file(folder);
  std::array<double, 5> times{};
  const std::vector<char> page(4096, 'w');
  for (double& time : times) {
    const auto start = Clock::now();
    file.write(page);
    file.sync();
    time = seconds_since(start);
  }
  std::sort(times.begin(), times.end());
  speed.fsync_s = times[times.size() / 2];

  const size_t pieces = std::clamp<size_t>(speed.free / 4 / kPiece, 1, kPieces);
  const std::vector<char> piece(kPiece, 'w');
  const auto start = Clock::now();
  for (size_t i = 0; i < pieces; ++i) file.write(piece);
  file.sync();
  speed.write_bytes_per_s = static_cast<double>(pieces * kPiece) / seconds_since(start);
  return speed;
}

}  // namespace witan::cli
