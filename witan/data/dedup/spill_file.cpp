#include "witan/data/dedup/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr size_t kSpillBufferBytes = 256 << 10;

}  // namespace

SpillFile::SpillFile(fs::path folder) : folder_(std::move(folder)) {
  std::string name = folder_ / ".witan-spill-XXXXXX";
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) fail("cannot create a temporary file in");
  ::unlink(name.c_str());
}

SpillFile::~SpillFile() {
  if (fd_ >= 0) ::close(fd_);
}

void SpillFile::fail(const char* what) const {
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT)
    throw DiskFullError(cat(what, " ", folder_.string(), ": the disk is full after ", written_,
                            " bytes; free some space, or name a folder on another disk with --temporary"));
  throw IoError(cat(what, " ", folder_.string(), ": ", std::strerror(error),
                    "; name a folder that can be written with --temporary"));
}

void SpillFile::append(const void* data, size_t bytes) {
  buffer_.append(static_cast<const char*>(data), bytes);
  if (buffer_.size() >= kSpillBufferBytes) flush();
}

void SpillFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t n = ::pwrite(fd_, buffer_.data() + done, buffer_.size() - done, static_cast<off_t>(written_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write a temporary file in");
    done += static_cast<size_t>(n);
  }
  written_ += buffer_.size();
  buffer_.clear();
}

void SpillFile::read(uint64_t offset, void* out, size_t bytes) {
  flush();
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read a temporary file in");
    require<IoError>(n > 0, "a temporary file in ", folder_.string(), " ends at byte ", offset + done,
                     ", before what was written to it");
    done += static_cast<size_t>(n);
  }
}

}  // namespace witan
