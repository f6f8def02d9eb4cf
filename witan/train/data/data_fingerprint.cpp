#include "witan/train/data/data_fingerprint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/hash.h"
#include "witan/base/threads/threads.h"

namespace witan {
namespace {

constexpr size_t kFingerprintBytes = size_t{64} << 20;
constexpr size_t kHeldBytes = size_t{32} << 20;  // of files in memory at once, but at least one file
constexpr std::array<const char*, 4> kSuffixes = {"", ".idx", ".bin", ".loss.bin"};

struct FileHead {
  uint64_t size = 0;  // of the file
  std::vector<char> bytes;
};

// The size and the first bytes, up to `most`, of a file; nothing if it does not exist.
std::optional<FileHead> head_of_file(const std::string& path, size_t most) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // does not block on a FIFO
  if (file.fd() < 0 && (errno == ENOENT || errno == ENOTDIR)) return {};
  const auto fail = [&] { throw IoError(cat("cannot read ", path, ": ", std::strerror(errno))); };
  struct stat status {};
  if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) fail();
  if (!S_ISREG(status.st_mode)) return {};
  FileHead head{static_cast<uint64_t>(status.st_size), {}};
  head.bytes.resize(std::min<size_t>(head.size, most));
  for (size_t have = 0; have < head.bytes.size();) {
    const ssize_t n = ::read(file.fd(), head.bytes.data() + have, head.bytes.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail();
    require<IoError>(n > 0, "cannot read ", path, ": the file shrank while it was read");
    have += static_cast<size_t>(n);
  }
  return head;
}

}  // namespace

std::string fingerprint_of(const std::vector<fs::path>& prefixes, const std::string& order) {
  const size_t most = kFingerprintBytes / std::max<size_t>(prefixes.size(), 1);
  const size_t files = prefixes.size() * kSuffixes.size();
  const size_t at_once = std::max<size_t>(kHeldBytes / std::max<size_t>(most, 1), 1);
  Hasher hasher;
  for (size_t begin = 0; begin < files; begin += at_once) {
    std::vector<std::optional<FileHead>> heads(std::min(at_once, files - begin));
    side_by_side(heads.size(), [&](size_t i) {
      const size_t file = begin + i;
      heads[i] = head_of_file(prefixes[file / kSuffixes.size()].string() + kSuffixes[file % kSuffixes.size()], most);
    });
    for (const auto& head : heads) {
      if (!head) continue;
      hasher.update(&head->size, sizeof head->size);
      hasher.update(head->bytes.data(), head->bytes.size());
    }
  }
  hasher.update(order.data(), order.size());
  return hasher.hex();
}

std::vector<fs::path> files_written_after(const std::vector<fs::path>& prefixes, fs::file_time_type then, size_t most) {
  std::vector<fs::path> found;
  for (const fs::path& prefix : prefixes)
    for (const char* suffix : {".bin", ".loss.bin", ".idx", ""}) {
      if (found.size() == most) return found;
      const fs::path file = prefix.string() + suffix;
      std::error_code error;
      if (!fs::is_regular_file(file, error)) continue;
      const auto written = fs::last_write_time(file, error);
      if (error || written <= then) continue;
      found.push_back(file);
      break;
    }
  return found;
}

}  // namespace witan
