#include "witan/tokenizer/text/normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/tokenizer/models/sentencepiece.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

TEST(Normalizer, KnownForms) {
  EXPECT_EQ(to_nfc(""), "");
  EXPECT_EQ(to_nfc("plain é"), "plain é");
  EXPECT_EQ(to_nfc("e\u0301"), "é");
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(to_nfc("\u212B"), "Å");               // the ångström sign
  EXPECT_EQ(to_nfc("\u1100\u1161\u11A8"), "각");  // jamo
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093C");    // excluded from composition
  EXPECT_EQ(to_nfc("e\u0301\xFF"), "e\u0301\xFF");
}

TEST(Normalizer, MatchesUtf8proc) {
  const std::vector<std::string> alphabet = {"a",      "e",      "q",      "é",      "\u0301", "\u0323", "\u0307",
                                             "\u0344", "\u0F71", "\u0F73", "\u1100", "\u1161", "\u11A8", "가",
                                             "日",     "\u212B", "\u0958", "\u093C", " "};
  std::mt19937 random(13);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t n = random() % 16 + 1; n > 0; --n) text += alphabet[random() % alphabet.size()];
    auto* expected = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    ASSERT_EQ(to_nfc(text), reinterpret_cast<const char*>(expected)) << testing::PrintToString(text);
    std::free(expected);
  }
}

// Text after a newline is normalized on its own; the mark there makes sure that normalization runs.
TEST(Normalizer, QuickCheckHasNoFalseNegatives) {
  const std::string forced = "\ne\u0301", normalized = "\n\u00E9";
  std::mt19937 random(4);
  std::string previous = "a";
  int quick = 0;
  for (int32_t c = 0x80; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string character;
    append_character(character, c);
    for (const std::string& text : {character, "a" + character, previous + character, character + "\u0323"}) {
      if (may_change_under_nfc(text)) continue;
      ++quick;
      ASSERT_EQ(to_nfc(text + forced), text + normalized) << c;
    }
    if (random() % 8 == 0) previous = character;
  }
  EXPECT_GT(quick, 3'000'000);
  EXPECT_FALSE(may_change_under_nfc("日本語 한국어 हिन्दी ไทยที่"));
  EXPECT_TRUE(may_change_under_nfc("e\u0301"));
}

TEST(Normalizer, NormalizesLongRunsOfMarksQuickly) {
  for (const char* unit : {"\u0301\u0323", "\u0F73"}) {
    std::string text = "a";
    while (text.size() < 1 << 20) text += unit;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_GE(to_nfc(text).size(), text.size() - 4);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << unit;  // quadratic: many minutes
  }
}

// The rules in make_kinds.py.
std::string charsmap_bytes() {
  const fs::path path = fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/kinds/unigram.model";
  return parse_sentencepiece_model(read_file(path), "unigram.model").charsmap;
}

TEST(Charsmap, FindsRules) {
  const Charsmap map(charsmap_bytes());
  EXPECT_EQ(map.longest("\u00A0x")->replacement, " ");
  EXPECT_EQ(map.longest("\u00A0x")->length, 2u);
  EXPECT_EQ(map.longest("\uFB01")->replacement, "fi");
  EXPECT_EQ(map.longest("e\u0301x")->replacement, "\u00E9");
  EXPECT_EQ(map.longest("\x1F")->replacement, "");
  EXPECT_FALSE(map.longest("e"));
  EXPECT_FALSE(map.longest(""));
  EXPECT_EQ(map.normalize_graphemes("e\u0301\uFB01 x\u3000"), "\u00E9fi x ");
}

TEST(Charsmap, ErrorsNameTheDamage) {
  EXPECT_EQ(test::message_of<CorruptionError>([] { Charsmap("abcd"); }),
            "the compiled character map has 4 bytes, too few for its header: download the tokenizer file again");
  EXPECT_EQ(test::message_of<CorruptionError>([] { Charsmap(std::string("\x05\0\0\0ab", 6)); }),
            "the compiled character map declares a trie of 5 bytes, but has only 2: download the tokenizer file again");
}

TEST(Charsmap, DamagedTriesAreNotReadOutOfBounds) {
  const std::string whole = charsmap_bytes();
  std::mt19937 random(9);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 8; ++i) damaged[4 + random() % (damaged.size() - 4)] = static_cast<char>(random());
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>(random());
    const Charsmap map(damaged);
    for (size_t at = 0; at < text.size(); ++at) {
      const auto rule = map.longest(std::string_view(text).substr(at));
      ASSERT_LE(rule ? rule->length : 0, text.size() - at);
    }
    map.normalize_graphemes(text);
  }
}

}  // namespace
}  // namespace witan
