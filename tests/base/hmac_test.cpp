#include "witan/base/hmac.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace witan {
namespace {

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
TEST(Hmac, GivesThePublishedCodes) {
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
