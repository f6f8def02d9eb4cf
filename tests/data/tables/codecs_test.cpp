#include "witan/data/tables/codecs.h"

#include <lz4.h>
#include <lz4frame.h>
#include <snappy-c.h>

#include "data/data_support.h"
#include "witan/data/tables/damage.h"

namespace witan::tables {
namespace {

std::string text() {
  std::string all;
  for (int i = 0; i < 3000; ++i) all += "expert " + std::to_string(i * i % 97) + ", ";
  return all;
}

std::string compressed(Codec codec, const std::string& bytes) {
  std::string out(bytes.size() * 2 + 1000, '\0');
  size_t size = out.size();
  switch (codec) {
    case Codec::none:
      return bytes;
    case Codec::gzip:
      return gzip(bytes);
    case Codec::zstd:
      return zstd(bytes);
    case Codec::snappy:
      EXPECT_EQ(snappy_compress(bytes.data(), bytes.size(), out.data(), &size), SNAPPY_OK);
      break;
    case Codec::lz4_block:
      size = static_cast<size_t>(
          LZ4_compress_default(bytes.data(), out.data(), static_cast<int>(bytes.size()), static_cast<int>(out.size())));
      break;
    case Codec::lz4_frame:
      size = LZ4F_compressFrame(out.data(), out.size(), bytes.data(), bytes.size(), nullptr);
      break;
  }
  out.resize(size);
  return out;
}

constexpr Codec kAll[] = {Codec::none, Codec::snappy, Codec::gzip, Codec::zstd, Codec::lz4_block, Codec::lz4_frame};

TEST(Codecs, InvertTheLibraries) {
  Decompressor decompressor;
  for (int repeat = 0; repeat < 2; ++repeat)
    for (const Codec codec : kAll)
      for (const std::string& bytes : {text(), std::string("x"), std::string(100'000, 'a')})
        EXPECT_EQ(decompressor.run(codec, compressed(codec, bytes), bytes.size()), bytes) << static_cast<int>(codec);
}

TEST(Codecs, AcceptBlocksWithoutBytes) {
  Decompressor decompressor;
  for (const Codec codec : kAll) EXPECT_EQ(decompressor.run(codec, {}, 0), "");
}

TEST(Codecs, JoinSeveralGzipMembers) {
  Decompressor decompressor;
  EXPECT_EQ(decompressor.run(Codec::gzip, gzip("one, ") + gzip("two"), 8), "one, two");
}

TEST(Codecs, RefuseWrongSizesAndDamage) {
  Decompressor decompressor;
  const std::string bytes = text();
  for (const Codec codec : kAll) {
    const std::string block = compressed(codec, bytes);
    EXPECT_THROW(decompressor.run(codec, block, bytes.size() - 1), Damaged) << static_cast<int>(codec);
    EXPECT_THROW(decompressor.run(codec, block, bytes.size() + 1), Damaged) << static_cast<int>(codec);
    EXPECT_THROW(decompressor.run(codec, block.substr(0, block.size() / 2), bytes.size()), Damaged)
        << static_cast<int>(codec);
    if (codec == Codec::none) continue;
    for (size_t at = 0; at < block.size(); at += 31) {
      std::string flipped = block;
      flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
      try {
        EXPECT_EQ(decompressor.run(codec, flipped, bytes.size()).size(), bytes.size());
      } catch (const Damaged& damage) {
        EXPECT_FALSE(damage.reason.empty());
      }
    }
  }
}

// A header that declares two gigabytes in ten bytes must not allocate them.
TEST(Codecs, LimitSizesByTheCompressedBytes) {
  Decompressor decompressor;
  for (const Codec codec : kAll) {
    try {
      decompressor.run(codec, "ten bytes.", 0x7FFFFFFF);
      ADD_FAILURE() << static_cast<int>(codec);
    } catch (const Damaged& damage) {
      EXPECT_THAT(damage.reason, ::testing::AnyOf(::testing::HasSubstr("it cannot become the 2147483647 bytes"),
                                                  ::testing::HasSubstr("10 bytes where 2147483647")));
    }
  }
  EXPECT_THROW(decompressor.run(Codec::zstd, "x", uint64_t{1} << 40), Damaged);
}

}  // namespace
}  // namespace witan::tables
