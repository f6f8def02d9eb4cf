#include "witan/data/text/decompress.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr size_t kBlockBytes = 256 << 10;

// The file's own bytes through one block of memory.
class Input {
 public:
  explicit Input(const fs::path& path) : path_(path), block_(kBlockBytes) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    require<IoError>(fd_ >= 0, "cannot open ", path.string(), ": ", std::strerror(errno));
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);  // a hint: twice as much is read ahead
  }
  ~Input() {
    if (fd_ >= 0) ::close(fd_);
  }
  Input(Input&& other) noexcept
      : path_(std::move(other.path_)),
        block_(std::move(other.block_)),
        fd_(std::exchange(other.fd_, -1)),
        begin_(other.begin_),
        end_(other.end_),
        offset_(other.offset_) {}

  // Reads the next block once this one is used up. False at the end of the file.
  bool fill() {
    if (begin_ < end_) return true;
    ssize_t n = 0;
    do n = ::read(fd_, block_.data(), block_.size());
    while (n < 0 && errno == EINTR);
    require<IoError>(n >= 0, "cannot read ", path_.string(), ": ", std::strerror(errno));
    begin_ = 0;
    end_ = static_cast<size_t>(n);
    return n > 0;
  }

  std::string_view available() const { return {block_.data() + begin_, end_ - begin_}; }
  void consume(size_t bytes) {
    begin_ += bytes;
    offset_ += bytes;
  }
  uint64_t offset() const { return offset_; }

  template <class... Pieces>
  [[noreturn]] void fail(Pieces&&... pieces) const {
    throw CorruptionError(cat(path_.string(), ": byte ", offset_, ": ", std::forward<Pieces>(pieces)...));
  }

 private:
  fs::path path_;
  std::vector<char> block_;
  int fd_ = -1;
  size_t begin_ = 0, end_ = 0;
  uint64_t offset_ = 0;  // of begin_ in the file
};

constexpr const char* kTruncated = " data ends early; copy or download the file again";

class PlainReader final : public ByteReader {
 public:
  explicit PlainReader(Input input) : input_(std::move(input)) {}

  size_t read(char* out, size_t bytes) override {
    if (!input_.fill()) return 0;
    const size_t n = std::min(bytes, input_.available().size());
    std::memcpy(out, input_.available().data(), n);
    input_.consume(n);
    return n;
  }
  uint64_t offset() const override { return input_.offset(); }

 private:
  Input input_;
};

class GzipReader final : public ByteReader {
 public:
  explicit GzipReader(Input input) : input_(std::move(input)) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipReader() override { inflateEnd(&stream_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  size_t read(char* out, size_t bytes) override {
    bytes = std::min<size_t>(bytes, 1 << 30);  // zlib counts in 32 bits
    for (;;) {
      if (!input_.fill()) {
        if (member_open_) input_.fail("gzip", kTruncated);
        return 0;
      }
      if (!member_open_ && !open_next_member()) continue;
      if (const size_t n = inflate_some(out, bytes)) return n;
    }
  }
  uint64_t offset() const override { return input_.offset(); }

 private:
  // After a member: zeros are padding, as gzip itself has it. False when only padding was there.
  bool open_next_member() {
    const size_t zeros = std::min(input_.available().find_first_not_of('\0'), input_.available().size());
    input_.consume(zeros);
    if (input_.available().empty()) return false;
    inflateReset(&stream_);
    return member_open_ = true;
  }

  size_t inflate_some(char* out, size_t bytes) {
    const std::string_view in = input_.available();
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(bytes);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    input_.consume(in.size() - stream_.avail_in);
    if (status == Z_STREAM_END)
      member_open_ = false;
    else if (status != Z_OK && status != Z_BUF_ERROR)
      input_.fail("damaged gzip data (", stream_.msg ? stream_.msg : "unknown error", ")");
    return bytes - stream_.avail_out;
  }

  Input input_;
  z_stream stream_{};
  bool member_open_ = true;  // a file holds at least one
};

class ZstdReader final : public ByteReader {
 public:
  explicit ZstdReader(Input input) : input_(std::move(input)), context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (!context_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, 27);
  }

  size_t read(char* out, size_t bytes) override {
    for (;;) {
      const bool more = input_.fill();
      if (!more && !frame_open_) return 0;
      const std::string_view available = input_.available();
      ZSTD_inBuffer in{available.data(), available.size(), 0};
      ZSTD_outBuffer produced{out, bytes, 0};
      const size_t status = ZSTD_decompressStream(context_.get(), &produced, &in);
      input_.consume(in.pos);
      if (ZSTD_isError(status)) input_.fail("damaged zstd data (", ZSTD_getErrorName(status), ")");
      frame_open_ = status != 0;
      if (produced.pos > 0) return produced.pos;
      if (!more) input_.fail("zstd", kTruncated);
    }
  }
  uint64_t offset() const override { return input_.offset(); }

 private:
  Input input_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  bool frame_open_ = true;  // a file holds at least one
};

bool has_gzip_magic(std::string_view head) {
  return head.starts_with("\x1f\x8b");
}

bool has_zstd_magic(std::string_view head) {
  if (head.starts_with("\x28\xb5\x2f\xfd")) return true;
  return head.size() >= 4 && (head[0] & 0xF0) == 0x50 && head.substr(1, 3) == "\x2a\x4d\x18";  // a skippable frame
}

}  // namespace

std::unique_ptr<ByteReader> open_bytes(const fs::path& path) {
  Input input(path);
  input.fill();
  const std::string_view head = input.available().substr(0, 4);
  if (path.extension() == ".gz" && !has_gzip_magic(head))
    input.fail("not a gzip file, as its name says; copy it again, or rename it if it is plain");
  if (path.extension() == ".zst" && !has_zstd_magic(head))
    input.fail("not a zstd file, as its name says; copy it again, or rename it if it is plain");
  if (has_gzip_magic(head)) return std::make_unique<GzipReader>(std::move(input));
  if (has_zstd_magic(head)) return std::make_unique<ZstdReader>(std::move(input));
  return std::make_unique<PlainReader>(std::move(input));
}

bool is_compressed(const fs::path& path) {
  Input input(path);
  input.fill();
  const std::string_view head = input.available().substr(0, 4);
  return has_gzip_magic(head) || has_zstd_magic(head);
}

LineReader::LineReader(ByteReader& reader, uint64_t most_bytes)
    : reader_(reader), most_bytes_(most_bytes), block_(256 << 10) {}

bool LineReader::next() {
  line_.clear();
  too_long_ = false;
  bool any = false;
  for (;;) {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = reader_.read(block_.data(), block_.size());
      if (end_ == 0) break;
    }
    any = true;
    const std::string_view rest(block_.data() + begin_, end_ - begin_);
    const size_t newline = rest.find('\n');
    const std::string_view piece = rest.substr(0, newline);
    const size_t room = most_bytes_ - line_.size();
    too_long_ |= piece.size() > room;
    line_.append(piece.substr(0, room));
    begin_ += piece.size();
    if (newline == std::string_view::npos) continue;
    ++begin_;
    break;
  }
  if (!any) return false;
  ++number_;
  if (line_.ends_with('\r') && !too_long_) line_.pop_back();
  return true;
}

}  // namespace witan
