#include "witan/base/files/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {

FileToRead::FileToRead(const fs::path& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a FIFO must not block, but fail
  if (!file_.is_open()) throw_io_error("cannot open", path, errno);
  struct stat status {};
  if (::fstat(file_.fd(), &status) != 0) throw_io_error("cannot read", path, errno);
  require<IoError>(S_ISREG(status.st_mode), "cannot read ", path.string(), ": it is not a regular file");
  size_ = static_cast<uint64_t>(status.st_size);
}

void FileToRead::read(uint64_t offset, size_t bytes, std::string& out) const {
  out.resize(bytes);
  size_t got = 0;
  while (got < bytes) {
    const ssize_t now = ::pread(file_.fd(), out.data() + got, bytes - got, static_cast<off_t>(offset + got));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) throw_io_error("cannot read", path_, errno);
    if (now == 0) break;
    got += static_cast<size_t>(now);
  }
  out.resize(got);
}

LinesForward::LinesForward(const fs::path& path, uint64_t from, size_t piece_bytes)
    : file_(path), piece_bytes_(piece_bytes), piece_at_(from) {}

bool LinesForward::next() {
  for (size_t bytes = piece_bytes_;; bytes *= 2) {
    const size_t feed = piece_.find('\n', next_);
    if (feed != std::string::npos) {
      line_ = std::string_view(piece_).substr(next_, feed - next_);
      offset_ = piece_at_ + next_;
      next_ = feed + 1;
      return true;
    }
    // The rest of the piece is a line without its end; it is read again with what follows.
    if (piece_at_ + piece_.size() >= file_.size()) return false;
    const size_t left = piece_.size() - next_;
    piece_at_ += std::exchange(next_, 0);
    file_.read(piece_at_, std::min<uint64_t>(bytes + left, file_.size() - piece_at_), piece_);
    if (piece_.size() <= left) return false;  // cut meanwhile
  }
}

LinesBackward::LinesBackward(const fs::path& path, size_t piece_bytes)
    : file_(path), piece_bytes_(piece_bytes), piece_at_(file_.size()) {
  size_t feed = std::string::npos;
  while (feed == std::string::npos && read_before()) feed = piece_.rfind('\n');
  end_ = feed == std::string::npos ? 0 : feed + 1;
}

// Prepends the text before the piece: as much again as needed, and one more piece.
bool LinesBackward::read_before() {
  if (piece_at_ == 0) return false;
  const uint64_t end = piece_at_ + end_;
  const auto more = static_cast<size_t>(std::min<uint64_t>(piece_at_, std::max(piece_bytes_, end_)));
  piece_at_ -= more;
  file_.read(piece_at_, static_cast<size_t>(end - piece_at_), piece_);
  require<IoError>(piece_.size() == end - piece_at_, "cannot read ", file_.path().string(), ": it was cut meanwhile");
  end_ = piece_.size();
  return true;
}

bool LinesBackward::next() {
  if (end_ == 0 && !read_before()) return false;
  for (;;) {
    const size_t feed = end_ > 1 ? piece_.rfind('\n', end_ - 2) : std::string::npos;
    if (feed == std::string::npos && read_before()) continue;
    const size_t begin = feed == std::string::npos ? 0 : feed + 1;
    line_ = std::string_view(piece_).substr(begin, end_ - 1 - begin);
    offset_ = piece_at_ + begin;
    end_ = begin;
    return true;
  }
}

}  // namespace witan
