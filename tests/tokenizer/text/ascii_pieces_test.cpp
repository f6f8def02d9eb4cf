// The patterns by which ascii_pieces() cuts are compared with Oniguruma in pretokenizer_test.cpp.
#include "witan/tokenizer/text/ascii_pieces.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace witan {
namespace {

uint64_t bits(std::string_view text, const std::function<bool(char)>& is) {
  uint64_t found = 0;
  for (size_t i = 0; i < 64; ++i) found |= uint64_t{is(text[i])} << i;
  return found;
}

TEST(AsciiPieces, ABlockKnowsTheClassesOfItsBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i * 37);  // each byte once
  for (size_t begin = 0; begin + 64 <= bytes.size(); ++begin) {
    const std::string_view text = std::string_view(bytes).substr(begin, 64);
    const AsciiBlock block(text.data());
    EXPECT_EQ(block.equal('\n'), bits(text, [](char c) { return c == '\n'; }));
    EXPECT_EQ(block.between('0', '9'), bits(text, [](char c) { return c >= '0' && c <= '9'; }));
    EXPECT_EQ(block.letters(), bits(text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }));
    EXPECT_EQ(block.beyond_ascii(), bits(text, [](char c) { return (c & 0x80) != 0; }));
  }
}

TEST(AsciiPieces, BeginWhereNothingBehindThemMatters) {
  constexpr AsciiRules kRules = {
      .letters_take_any = true, .digits = 3, .newlines_are_apart = true, .splits_controls = true};
  const auto places = [](std::string text) {
    text.resize(64, '\x80');
    return ascii_pieces<kRules>(text.data());
  };
  EXPECT_EQ(places("ab cd ef"), 0b100100u);
  EXPECT_EQ(places("ab cd e"), 0b100u);  // " e" could become " e" or " ed": its place is known, but two bytes too late
  EXPECT_EQ(places("ab cd    "), 0b100u);
  EXPECT_EQ(places("é"), 0u);
  EXPECT_EQ(places("1234567 a"), 0b1001000u);
}

}  // namespace
}  // namespace witan
