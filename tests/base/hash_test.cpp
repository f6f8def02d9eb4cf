#include "witan/base/hash.h"

#include <gtest/gtest.h>

#include <cstdio>
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

TEST(Hash, IsIndependentOfPieces) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 31);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{240}, size_t{1024}, text.size()}) {
    Hasher hasher;
    hasher.update(text.data(), cut);
    hasher.update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(hasher.hex(), hash_of(text)) << cut;
  }
}

TEST(Hash, CanBeReadAndContinued) {
  Hasher hasher;
  hasher.update("ab", 2);
  const std::string before = hasher.hex();
  hasher.update("c", 1);
  EXPECT_EQ(before, hash_of("ab"));
  EXPECT_EQ(hasher.hex(), hash_of("abc"));
  EXPECT_EQ(hasher.low64(), 0x78af5f94892f3950u);
}

TEST(Hash, ChangesWithEveryBit) {
  const std::string text(100, 'x');
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(hash_of(flipped), hash_of(text)) << bit;
  }
}

TEST(Hash, CanBeMoved) {
  Hasher first;
  first.update("a", 1);
  Hasher second = std::move(first);
  second.update("bc", 2);
  EXPECT_EQ(second.hex(), hash_of("abc"));
}

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string hex(const Digest256& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", byte);
    text += pair;
  }
  return text;
}

// RFC 4231, cases 1, 2 and 6: a key shorter than a block, a short one, and one longer than a block.
TEST(Hmac, MatchesRfc4231) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), bytes_of("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(
      hex(hmac_sha256(std::string(131, '\xaa'), bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, ComparesWholeDigests) {
  const Digest256 a = hmac_sha256("key", bytes_of("text"));
  for (size_t i = 0; i < a.size(); ++i) {
    Digest256 b = a;
    b[i] ^= 1;
    EXPECT_FALSE(same_digest(a, b)) << i;
  }
  EXPECT_TRUE(same_digest(a, a));
}

TEST(FillRandom, DiffersFromCallToCall) {
  Digest256 a{}, b{};
  fill_random(a);
  fill_random(b);
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace witan
