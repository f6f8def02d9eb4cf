#include "witan/data/tables/codecs.h"

#include <lz4.h>
#include <lz4frame.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <limits>
#include <new>

#include "witan/data/tables/damage.h"

namespace witan::tables {

// Made when they are first needed: a file has one codec, and zstd's context is large.
struct Decompressor::Contexts {
  ~Contexts() {
    if (gzip_ready) inflateEnd(&gzip);
    LZ4F_freeDecompressionContext(lz4);
    ZSTD_freeDCtx(zstd);
  }

  z_stream& for_gzip() {
    constexpr int kGzipOrZlib = 32;  // either header
    if (!gzip_ready && inflateInit2(&gzip, MAX_WBITS + kGzipOrZlib) != Z_OK) throw std::bad_alloc();
    gzip_ready = true;
    return gzip;
  }
  ZSTD_DCtx* for_zstd() {
    if (!zstd) zstd = ZSTD_createDCtx();
    if (!zstd) throw std::bad_alloc();
    return zstd;
  }
  LZ4F_dctx* for_lz4() {
    if (!lz4 && LZ4F_isError(LZ4F_createDecompressionContext(&lz4, LZ4F_VERSION))) throw std::bad_alloc();
    return lz4;
  }

  z_stream gzip{};
  bool gzip_ready = false;
  ZSTD_DCtx* zstd = nullptr;
  LZ4F_dctx* lz4 = nullptr;
};

namespace {

constexpr uint64_t kMostBytes = std::numeric_limits<int32_t>::max();  // of a block, in and out

// How many bytes a byte of a block can stand for: a match of 64 bytes in 3 of snappy, 258 in 2 bits of deflate, a block
// of 128 KiB in 4 bytes of zstd, 255 more of a match in one of LZ4.
uint64_t most_expanded(Codec codec) {
  switch (codec) {
    case Codec::none:
      return 1;
    case Codec::snappy:
      return 24;
    case Codec::gzip:
      return 1040;
    case Codec::zstd:
      return (128 << 10) / 3;
    case Codec::lz4_block:
    case Codec::lz4_frame:
      return 256;
  }
  return 1;
}

size_t run_snappy(std::string_view in, char* out, size_t bytes) {
  size_t length = 0;
  intact(snappy_uncompressed_length(in.data(), in.size(), &length) == SNAPPY_OK, "damaged snappy data");
  if (length != bytes) return length;
  intact(snappy_uncompress(in.data(), in.size(), out, &length) == SNAPPY_OK, "damaged snappy data");
  return length;
}

// Several members are one block.
size_t run_gzip(z_stream& stream, std::string_view in, char* out, size_t bytes) {
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out);
  stream.avail_out = static_cast<uInt>(bytes);
  for (bool first = true; first || (stream.avail_in > 0 && stream.avail_out > 0); first = false) {
    inflateReset(&stream);
    const int status = inflate(&stream, Z_FINISH);
    intact(status == Z_STREAM_END, "damaged gzip data (",
           status == Z_BUF_ERROR ? "it ends early, or is larger than the header says"
           : stream.msg          ? stream.msg
                                 : "unknown error",
           ")");
  }
  return bytes - stream.avail_out;
}

size_t run_zstd(ZSTD_DCtx* context, std::string_view in, char* out, size_t bytes) {
  const size_t done = ZSTD_decompressDCtx(context, out, bytes, in.data(), in.size());
  intact(!ZSTD_isError(done), "damaged zstd data (", ZSTD_getErrorName(done), ")");
  return done;
}

size_t run_lz4_block(std::string_view in, char* out, size_t bytes) {
  const int done = LZ4_decompress_safe(in.data(), out, static_cast<int>(in.size()), static_cast<int>(bytes));
  intact(done >= 0, "damaged LZ4 data");
  return static_cast<size_t>(done);
}

size_t run_lz4_frame(LZ4F_dctx* context, std::string_view in, char* out, size_t bytes) {
  LZ4F_resetDecompressionContext(context);
  size_t taken = 0, made = 0, status = 1;
  while (status != 0) {
    size_t source = in.size() - taken, target = bytes - made;
    status = LZ4F_decompress(context, out + made, &target, in.data() + taken, &source, nullptr);
    intact(!LZ4F_isError(status), "damaged LZ4 data (", LZ4F_getErrorName(status), ")");
    intact(status == 0 || source > 0 || target > 0, "damaged LZ4 data (it ends early, or is larger than it says)");
    taken += source;
    made += target;
  }
  return made;
}

}  // namespace

Decompressor::Decompressor() : contexts_(std::make_unique<Contexts>()) {}
Decompressor::~Decompressor() = default;

std::string_view Decompressor::run(Codec codec, std::string_view block, uint64_t bytes) {
  intact(block.size() <= kMostBytes && bytes <= kMostBytes, "a block of ", std::max<uint64_t>(block.size(), bytes),
         " bytes, beyond 2 GiB");
  if (codec == Codec::none) {
    intact(block.size() == bytes, "it has ", block.size(), " bytes where ", bytes, " were declared");
    return block;
  }
  if (bytes == 0 && block.empty()) return {};
  constexpr uint64_t kSmall = 1 << 10;
  intact(bytes <= kSmall + block.size() * most_expanded(codec), "it cannot become the ", bytes,
         " bytes that are declared: it has ", block.size());
  if (capacity_ < bytes || !out_) {
    capacity_ = std::max(bytes, kSmall);
    out_ = std::make_unique_for_overwrite<char[]>(capacity_);
  }
  const auto expand = [&]() -> size_t {
    switch (codec) {
      case Codec::snappy:
        return run_snappy(block, out_.get(), bytes);
      case Codec::gzip:
        return run_gzip(contexts_->for_gzip(), block, out_.get(), bytes);
      case Codec::zstd:
        return run_zstd(contexts_->for_zstd(), block, out_.get(), bytes);
      case Codec::lz4_block:
        return run_lz4_block(block, out_.get(), bytes);
      case Codec::lz4_frame:
        return run_lz4_frame(contexts_->for_lz4(), block, out_.get(), bytes);
      case Codec::none:
        break;
    }
    return 0;
  };
  const size_t made = expand();
  intact(made == bytes, "it unpacks to ", made, " bytes where ", bytes, " were declared");
  return {out_.get(), bytes};
}

}  // namespace witan::tables
