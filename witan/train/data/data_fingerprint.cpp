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
#include "witan/data/datasets/indexed_dataset.h"

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
std::optional<FileHead> head_of_file(const fs::path& path, size_t most) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // does not block on a FIFO
  if (file.fd() < 0 && (errno == ENOENT || errno == ENOTDIR)) return {};
  const auto fail = [&] { throw IoError(cat("cannot read ", path.string(), ": ", std::strerror(errno))); };
  struct stat status {};
  if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) fail();
  if (!S_ISREG(status.st_mode)) return {};
  FileHead head{static_cast<uint64_t>(status.st_size), {}};
  head.bytes.resize(std::min<size_t>(head.size, most));
  for (size_t have = 0; have < head.bytes.size();) {
    const ssize_t n = ::read(file.fd(), head.bytes.data() + have, head.bytes.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail();
    require<IoError>(n > 0, "cannot read ", path.string(), ": the file shrank while it was read");
    have += static_cast<size_t>(n);
  }
  return head;
}

// The sizes and first bytes, up to `most` of each, of the files that exist.
void hash_heads(Hasher& hasher, const std::vector<fs::path>& files, size_t most) {
  const size_t at_once = std::max<size_t>(kHeldBytes / std::max<size_t>(most, 1), 1);
  for (size_t begin = 0; begin < files.size(); begin += at_once) {
    std::vector<std::optional<FileHead>> heads(std::min(at_once, files.size() - begin));
    side_by_side(heads.size(), [&](size_t i) { heads[i] = head_of_file(files[begin + i], most); });
    for (const auto& head : heads) {
      if (!head) continue;
      hasher.update(&head->size, sizeof head->size);
      hasher.update(head->bytes.data(), head->bytes.size());
    }
  }
}

}  // namespace

std::string fingerprint_of(const std::vector<fs::path>& prefixes, const std::string& order) {
  std::vector<fs::path> files;
  for (const fs::path& prefix : prefixes)
    for (const char* suffix : kSuffixes) files.emplace_back(prefix.string() + suffix);
  Hasher hasher;
  hash_heads(hasher, files, kFingerprintBytes / std::max<size_t>(prefixes.size(), 1));
  hasher.update(order.data(), order.size());
  return hasher.hex();
}

std::string fingerprint_with_columns(const std::string& tokens, const std::vector<fs::path>& prefixes,
                                     const std::vector<ColumnSpec>& columns) {
  if (columns.empty()) return tokens;
  Hasher hasher;
  hasher.update(tokens.data(), tokens.size());
  for (const ColumnSpec& column : columns) {
    hasher.update(column.name.c_str(), column.name.size() + 1);
    std::vector<fs::path> files;
    for (const fs::path& prefix : prefixes) files.push_back(column_file(prefix, column.name));
    hash_heads(hasher, files, kFingerprintBytes / std::max<size_t>(prefixes.size() * columns.size(), 1));
  }
  return hasher.hex();
}

std::vector<fs::path> files_written_after(const std::vector<fs::path>& prefixes, fs::file_time_type then, size_t most,
                                          const std::vector<ColumnSpec>& columns) {
  std::vector<fs::path> found;
  for (const fs::path& prefix : prefixes) {
    if (found.size() == most) break;
    std::vector<fs::path> files;
    for (const char* suffix : {".bin", ".loss.bin", ".idx", ""}) files.emplace_back(prefix.string() + suffix);
    for (const ColumnSpec& column : columns) files.push_back(column_file(prefix, column.name));
    const auto later = std::ranges::find_if(files, [&](const fs::path& file) {
      std::error_code error;
      return fs::is_regular_file(file, error) && fs::last_write_time(file, error) > then && !error;
    });
    if (later != files.end()) found.push_back(*later);
  }
  return found;
}

}  // namespace witan
