// Compares the hand-written scanners with Oniguruma on the same patterns.
#include "witan/tokenizer/text/pretokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <string>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/tokenizer/text/ascii_pieces.h"

namespace witan {
namespace {

using Pieces = std::vector<std::string>;

template <class Splitter>
Pieces pieces_of(const Splitter& splitter, std::string_view text) {
  Pieces pieces;
  splitter.split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

Pieces scan(std::string_view pattern, std::string_view text) {
  return pieces_of(Pretokenizer({std::string(pattern)}), text);
}

const std::vector<std::string_view> kPatterns = {
    kGpt2Pattern,          kLlama3Pattern,      kQwen2Pattern,    kNumberPattern, kNumberRunPattern,
    kNumberTripletPattern, kDigitPattern,       kDigitRunPattern, kO200kPattern,  kTekkenPattern,
    kKimiPattern,          kDeepSeekCjkPattern, kDeepSeekPattern, kQwen35Pattern};

// Characters at the boundaries of the classes; U+180E was a space before Unicode 6.3, U+11DE0 is a digit since 17.
const std::vector<std::string> kAlphabet = {" ",      " ",          "\n",
                                            "\r",     "\t",         "\v",
                                            "\x1C",   "'",          "'",
                                            "s",      "S",          "t",
                                            "l",      "L",          "e",
                                            "v",      "R",          "m",
                                            "D",      "ſ",          "a",
                                            "Z",      "é",          "ß",
                                            "日",     "ʰ",          "々",
                                            "〇",     "⺀",         "の",
                                            "/",      "ǅ",          "ª",
                                            "1",      "9",          "٣",
                                            "½",      "Ⅷ",          "²",
                                            ".",      "!",          "_",
                                            "\u0301", "\u00A0",     "\u0085",
                                            "\u3000", "\u2028",     "\u200B",
                                            "\u200D", "\uFEFF",     "😀",
                                            "𝟘",      "𝐀",          "\uE000",
                                            "\u180E", "\U00011DE0", std::string(1, '\0'),
                                            "\u3040", "・"};
const std::vector<std::string> kInvalid = {"\xC3", "\x80", "\xFF", "\xE2\x82", "\xED\xA0\x80", "\xF0\x9F\x98"};

TEST(Pretokenizer, ScannersAgreeWithOnigurumaOnRandomText) {
  std::mt19937 random(7);
  for (const std::string_view pattern : kPatterns) {
    ASSERT_NE(scanner_for(pattern), nullptr);
    const Pretokenizer scanner({std::string(pattern)});
    const RegexSplitter reference{std::string(pattern)};
    for (int round = 0; round < 4000; ++round) {
      std::string text;
      for (size_t n = random() % 24 + 1; n > 0; --n) text += kAlphabet[random() % kAlphabet.size()];
      ASSERT_EQ(pieces_of(scanner, text), pieces_of(reference, text)) << pattern << "\n"
                                                                      << testing::PrintToString(text);
    }
  }
}

// Long enough for blocks of ASCII text, with some other characters between them.
std::string long_text(std::mt19937& random) {
  static const std::vector<std::string> kWords = {
      "a",     "the",  "Word",  "HTTPServer", "camelCase", "ABC",    "I",      "12",     "1234567", "'s",   "'ll",
      "'RE",   "'",    "don't", " ",          " ",         " ",      "  ",     "\n",     "\r\n",    "\t",   "\n\n",
      "   \n", "    ", "(",     ")",          "...",       "//",     "/\n",    "*",      "#!",      "\x01", "\x7F",
      "é",     "日本", "ー",    "٣",          "ſ",         "\u0301", "\u3000", "\u3040", "・"};
  const size_t ascii = random() % 3 == 0 ? kWords.size() : kWords.size() - 9;  // the last nine are not ASCII
  std::string text;
  for (size_t n = random() % 200; n > 0; --n) text += kWords[random() % ascii];
  return text;
}

TEST(Pretokenizer, ScannersAgreeWithOnigurumaOnLongText) {
  std::mt19937 random(8);
  for (const std::string_view pattern : kPatterns) {
    const Pretokenizer scanner({std::string(pattern)});
    const RegexSplitter reference{std::string(pattern)};
    for (int round = 0; round < 400; ++round) {
      const std::string text = long_text(random);
      ASSERT_EQ(pieces_of(scanner, text), pieces_of(reference, text)) << pattern << "\n"
                                                                      << testing::PrintToString(text);
    }
  }
}

TEST(Pretokenizer, ScannerOfDeepSeekMatchesItsThreeSteps) {
  const std::vector<std::string> steps = {std::string(kNumberTripletPattern), std::string(kDeepSeekCjkPattern),
                                          std::string(kDeepSeekPattern)};
  ASSERT_NE(scanner_for(steps[0], steps[1], steps[2]), nullptr);
  EXPECT_EQ(scanner_for(steps[1], steps[0], steps[2]), nullptr);
  const Pretokenizer scanner({steps[0], steps[1], steps[2]});
  std::vector<RegexSplitter> references;
  for (const std::string& step : steps) references.emplace_back(step);
  std::mt19937 random(9);
  for (int round = 0; round < 4000; ++round) {
    std::string text = round % 4 == 0 ? long_text(random) : "";
    if (text.empty())
      for (size_t n = random() % 24 + 1; n > 0; --n) text += kAlphabet[random() % kAlphabet.size()];
    Pieces expected = {text};
    for (const RegexSplitter& reference : references) {
      Pieces next;
      for (const std::string& piece : expected)
        for (std::string& part : pieces_of(reference, piece)) next.push_back(std::move(part));
      expected = std::move(next);
    }
    ASSERT_EQ(pieces_of(scanner, text), expected) << testing::PrintToString(text);
  }
}

TEST(Pretokenizer, ScannersAgreeWithOnigurumaOnCharactersOfAllBlocks) {
  const auto utf8 = [](uint32_t c) {
    std::string s;
    if (c < 0x80) return s = {static_cast<char>(c)};
    if (c < 0x800) return s = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    if (c < 0x10000)
      return s = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
                  static_cast<char>(0x80 | (c & 63))};
    return s = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
                static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  };
  // Together the patterns use every property that scanners know. Most characters from U+2000 on are in long runs of one
  // class, so every seventh is enough there; from U+32400 on only U+E0000 … U+E01FF are tested.
  for (const std::string_view pattern :
       {kLlama3Pattern, kQwen35Pattern, kKimiPattern, kDeepSeekCjkPattern, kDeepSeekPattern}) {
    const Pretokenizer scanner({std::string(pattern)});
    const RegexSplitter reference{std::string(pattern)};
    for (uint32_t block = 0; block < 0x110000; block += 0x100) {
      if (block >= 0xD800 && block < 0xE000) continue;  // surrogates have no UTF-8
      if (block >= 0x32400 && block != 0xE0000 && block != 0xE0100) continue;
      std::string text;
      for (uint32_t c = block; c < block + 0x100; c += block < 0x2000 ? 1 : 7)
        text += "x" + utf8(c) + utf8(c) + "y 1" + utf8(c) + " " + utf8(c);
      ASSERT_EQ(pieces_of(scanner, text), pieces_of(reference, text)) << pattern << " U+" << std::hex << block;
    }
  }
}

TEST(Pretokenizer, KeepsInvalidUtf8) {
  std::mt19937 random(11);
  for (const std::string_view pattern : kPatterns) {
    const Pretokenizer scanner({std::string(pattern)});
    const RegexSplitter reference{std::string(pattern)};
    for (int round = 0; round < 1000; ++round) {
      std::string text, scanned, matched;
      for (size_t n = random() % 24 + 1; n > 0; --n)
        text += random() % 3 == 0 ? kInvalid[random() % kInvalid.size()] : kAlphabet[random() % kAlphabet.size()];
      for (const std::string& piece : pieces_of(scanner, text)) scanned += piece;
      for (const std::string& piece : pieces_of(reference, text)) matched += piece;
      ASSERT_EQ(scanned, text);
      ASSERT_EQ(matched, text);
    }
  }
}

TEST(Pretokenizer, SplitsByPatterns) {
  EXPECT_EQ(scan(kGpt2Pattern, "I'll  go 123abc!\n\n x "),
            (Pieces{"I", "'ll", " ", " go", " 123", "abc", "!", "\n\n", " x", " "}));
  EXPECT_EQ(scan(kLlama3Pattern, "I'LL  go 12345!\n\n x "),
            (Pieces{"I", "'LL", " ", " go", " ", "123", "45", "!\n\n", " x", " "}));
  EXPECT_EQ(scan(kLlama3Pattern, "(ok) \n \n  z"), (Pieces{"(ok", ")", " \n \n", " ", " z"}));
  EXPECT_EQ(scan(kLlama3Pattern, "x'ſ"), (Pieces{"x", "'ſ"}));
  EXPECT_EQ(scan(kQwen2Pattern, " 12"), (Pieces{" ", "1", "2"}));
  EXPECT_EQ(scan(kQwen2Pattern, "ก็ต"), (Pieces{"ก", "็ต"}));
  EXPECT_EQ(scan(kQwen35Pattern, "ก็ต!\u0301"), (Pieces{"ก็ต", "!\u0301"}));
  EXPECT_EQ(scan(kDigitPattern, "ab12 c"), (Pieces{"ab", "1", "2", " c"}));
}

TEST(Pretokenizer, UsesTheScannerForPossessiveSpellings) {
  EXPECT_EQ(
      scanner_for(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
                  R"(|\s*[\r\n]|\s+(?!\S)|\s+)"),
      scanner_for(kLlama3Pattern));
  EXPECT_EQ(scanner_for(R"(\w+)"), nullptr);
}

TEST(Pretokenizer, ChainsPatterns) {
  const Pretokenizer chain({std::string(kDigitPattern), std::string(kGpt2Pattern)});
  EXPECT_EQ(pieces_of(chain, "a 12  b"), (Pieces{"a", " ", "1", "2", " ", " b"}));
  EXPECT_EQ(pieces_of(Pretokenizer({}), "a 12  b"), (Pieces{"a 12  b"}));
  EXPECT_TRUE(pieces_of(Pretokenizer({}), "").empty());
  EXPECT_TRUE(pieces_of(chain, "").empty());
}

TEST(Pretokenizer, UnknownPatternsKeepTextBetweenMatches) {
  EXPECT_EQ(scan("[0-9]+", "ab12c3"), (Pieces{"ab", "12", "c", "3"}));
  EXPECT_EQ(scan("x*", "axxb"), (Pieces{"a", "xx", "b"}));
  EXPECT_EQ(scan("(?=b)", "abcb"), (Pieces{"a", "bc", "b"}));  // an empty match splits
}

TEST(Pretokenizer, RunsOfOneKindTakeLinearTime) {
  for (const std::string_view pattern : kPatterns)
    for (const char* unit : {" ", "\n", "a", "1", "!", "'", " \n", "日"}) {
      std::string text;
      while (text.size() < (1 << 20)) text += unit;
      const auto begin = std::chrono::steady_clock::now();
      size_t bytes = 0;
      Pretokenizer({std::string(pattern)}).split(text, [&](std::string_view piece) { bytes += piece.size(); });
      EXPECT_EQ(bytes, text.size());
      // A quadratic scan takes minutes; the bound leaves room for sanitizers and busy machines.
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << pattern << " on " << unit;
    }
}

TEST(Pretokenizer, RefusesPatternsThatDoNotCompile) {
  const auto message = test::message_of<DataError>([] { Pretokenizer({"a(b"}); });
  EXPECT_NE(message.find("the tokenizer's pattern \"a(b\" does not compile: end pattern with unmatched parenthesis"),
            std::string::npos)
      << message;
}

TEST(Pretokenizer, SplitsLongTextsByReferencePatterns) {
  std::string text;
  while (text.size() < (1 << 20)) text += "a\u0301";
  const RegexSplitter words("\\w+|[^\\w\\s]+");
  EXPECT_EQ(pieces_of(words, text), Pieces{text});
}

TEST(Pretokenizer, LimitsBacktracking) {
  const Pretokenizer catastrophic({"(?:a|aa)+$"});
  const std::string text = std::string(64, 'a') + "b";
  const auto message = test::message_of<DataError>([&] { catastrophic.split(text, [](std::string_view) {}); });
  EXPECT_NE(message.find("exceeded its limits at byte 0 of a text of 65 bytes"), std::string::npos) << message;

  const Pretokenizer quadratic({"\\s+$"});  // from each position to the end of the run
  const std::string spaces = std::string(1 << 20, ' ') + "b";
  EXPECT_THROW(quadratic.split(spaces, [](std::string_view) {}), DataError);
}

}  // namespace

// The patterns of ascii_pieces() are compared with Oniguruma in pretokenizer_test.cpp.

namespace {

uint64_t bits(std::string_view text, const std::function<bool(char)>& is) {
  uint64_t found = 0;
  for (size_t i = 0; i < 64; ++i) found |= uint64_t{is(text[i])} << i;
  return found;
}

TEST(AsciiPieces, BlocksClassifyTheirBytes) {
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

TEST(AsciiPieces, BeginIndependentlyOfLaterText) {
  constexpr AsciiRules kRules = {
      .letters_take_any = true, .digits = 3, .newlines_are_apart = true, .splits_controls = true};
  const auto places = [](std::string text) {
    text.resize(64, '\x80');
    return ascii_pieces<kRules>(text.data());
  };
  EXPECT_EQ(places("ab cd ef"), 0b100100u);
  EXPECT_EQ(places("ab cd e"), 0b100u);  // " e" may become " e" or " ed", which is two bytes too late
  EXPECT_EQ(places("ab cd    "), 0b100u);
  EXPECT_EQ(places("é"), 0u);
  EXPECT_EQ(places("1234567 a"), 0b1001000u);
}

}  // namespace
}  // namespace witan
