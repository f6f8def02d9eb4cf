#include "witan/tokenizer/text/byte_alphabet.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

TEST(ByteAlphabet, RoundTripsEveryByte) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(from_byte_alphabet(to_byte_alphabet(bytes)), bytes);
}

TEST(ByteAlphabet, KnownCharacters) {
  EXPECT_EQ(to_byte_alphabet(" a\n\t\xAD"), "ĠaĊĉŃ");
  EXPECT_EQ(to_byte_alphabet("é"), "Ã©");
  EXPECT_EQ(byte_alphabet_order()[0], '!');
  EXPECT_EQ(byte_alphabet_order()[188], 0);
  EXPECT_EQ(byte_alphabet_order()[255], 0xAD);
}

TEST(ByteAlphabet, RefusesOtherCharacters) {
  for (const char* text : {" ", "a b", "\n", "日", "ń", "\xAD", "\xC4", "\xC3\x28", "\u00AD", "😀"})
    EXPECT_EQ(from_byte_alphabet(text), std::nullopt) << text;
}

}  // namespace
}  // namespace witan
