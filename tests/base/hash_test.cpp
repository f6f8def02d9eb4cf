#include "witan/base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace witan {
namespace {

std::string hash_of(const std::string& text) {
  return hash_hex(text.data(), text.size());
}

// Values printed by `xxhsum -H2` (xxHash 0.8).
TEST(Hash, KnownValues) {
  EXPECT_EQ(hash_hex(nullptr, 0), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_of("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(hash_of("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, PiecesDoNotMatter) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 31);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{240}, size_t{1024}, text.size()}) {
    Hasher hasher;
    hasher.update(text.data(), cut);
    hasher.update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(hasher.hex(), hash_of(text)) << cut;
  }
}

TEST(Hash, ReadingDoesNotEndTheStream) {
  Hasher hasher;
  hasher.update("ab", 2);
  const std::string before = hasher.hex();
  hasher.update("c", 1);
  EXPECT_EQ(before, hash_of("ab"));
  EXPECT_EQ(hasher.hex(), hash_of("abc"));
  EXPECT_EQ(hasher.low64(), 0x78af5f94892f3950u);
}

TEST(Hash, SeesEveryBit) {
  const std::string text(100, 'x');
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(hash_of(flipped), hash_of(text)) << bit;
  }
}

TEST(Hash, Moves) {
  Hasher first;
  first.update("a", 1);
  Hasher second = std::move(first);
  second.update("bc", 2);
  EXPECT_EQ(second.hex(), hash_of("abc"));
}

}  // namespace
}  // namespace witan
