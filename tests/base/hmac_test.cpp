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

std::string sha256(const std::string& text) {
  Sha256 hash;
  hash.update(bytes_of(text));
  return hex(hash.finish());
}

// The examples of FIPS 180-4: one block, two, and a million letters.
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowItIsFed) {
  const std::string text(200, 'x');
  Sha256 hash;
  for (size_t at = 0, step = 1; at < text.size(); at += step++) hash.update(bytes_of(text.substr(at, step)));
  EXPECT_EQ(hex(hash.finish()), sha256(text));
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
