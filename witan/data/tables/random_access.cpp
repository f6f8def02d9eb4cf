#include "witan/data/tables/random_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan::tables {
namespace {

constexpr uint64_t kBlockBytes = 256 << 10;

class FileBytes final : public RandomAccess {
 public:
  explicit FileBytes(const fs::path& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    require<IoError>(file_.is_open(), "cannot open ", path.string(), ": ", std::strerror(errno));
    struct stat status {};
    require<IoError>(::fstat(file_.fd(), &status) == 0, "cannot read ", path.string(), ": ", std::strerror(errno));
    size_ = static_cast<uint64_t>(status.st_size);
  }
  uint64_t size() const override { return size_; }

  void read(uint64_t at, std::span<char> out) const override {
    while (!out.empty()) {
      const ssize_t n = ::pread(file_.fd(), out.data(), out.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      require<IoError>(n >= 0, "cannot read ", path_.string(), ": ", std::strerror(errno));
      require<IoError>(n > 0, path_.string(), ": byte ", at, ": the file has become shorter while it was read");
      out = out.subspan(static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
    }
  }

 private:
  fs::path path_;
  Descriptor file_;
  uint64_t size_ = 0;
};

class MemoryBytes final : public RandomAccess {
 public:
  explicit MemoryBytes(std::string_view bytes) : bytes_(bytes) {}

  uint64_t size() const override { return bytes_.size(); }

  void read(uint64_t at, std::span<char> out) const override {
    require<IoError>(at <= bytes_.size() && out.size() <= bytes_.size() - at, "bytes beyond the end were asked for");
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + at, out.size());
  }

 private:
  std::string_view bytes_;
};

}  // namespace

std::unique_ptr<RandomAccess> open_file(const fs::path& path) {
  return std::make_unique<FileBytes>(path);
}

std::unique_ptr<RandomAccess> open_memory(std::string_view bytes) {
  return std::make_unique<MemoryBytes>(bytes);
}

std::string_view Window::peek(uint64_t bytes) {
  bytes = std::min(bytes, left());
  if (bytes > have_ - from_) {
    const size_t kept = have_ - from_;
    if (kept > 0) std::memmove(block_.data(), block_.data() + from_, kept);
    from_ = 0;
    have_ = kept;
    const uint64_t wanted = std::min(std::max(bytes, kBlockBytes), left());
    if (block_.size() < wanted) block_.resize(wanted);
    file_.read(at_ + kept, std::span(block_).subspan(kept, wanted - kept));
    have_ = wanted;
  }
  return {block_.data() + from_, bytes};
}

void Window::skip(uint64_t bytes) {
  assert(bytes <= left());
  at_ += bytes;
  if (bytes < have_ - from_)
    from_ += bytes;
  else
    from_ = have_ = 0;
}

}  // namespace witan::tables
