#include "witan/data/text/encoding.h"

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Encoding guess(const std::string& text) {
  return guess_encoding(text, find_invalid_utf8(text));
}

TEST(EncodingTest, GuessesFromPositionsOfNonAsciiBytes) {
  EXPECT_EQ(guess("Un caf\xE9 \xE0 la cr\xE8me, s'il vous pla\xEEt"), Encoding::latin1);
  EXPECT_EQ(guess("\x93quoted\x94 \x96 caf\xE9"), Encoding::windows_1252);
  EXPECT_EQ(guess("\xC4\xE3\xBA\xC3\xA3\xAC\xCA\xC0\xBD\xE7"), Encoding::several_bytes);  // GB18030
  EXPECT_EQ(guess("\xF0\xD2\xC9\xD7\xC5\xD4, \xCD\xC9\xD2"), Encoding::several_bytes);    // KOI8-R
  EXPECT_EQ(guess("\xC3\xA9t\xC3\xA9 \xC3\xA0 \xC3\xA8 \xC3\xAA \xC3\xB4 \xFF"), Encoding::damaged_utf8);
}

TEST(EncodingTest, ConsidersOnlyBytesNearTheInvalidOne) {
  const std::string ascii(1 << 20, 'a');
  std::string accents;
  for (int i = 0; i < 1000; ++i) accents += "\xC3\xA9 ";
  EXPECT_EQ(guess(accents + ascii + "\xE9 is latin1 here"), Encoding::latin1);
  EXPECT_EQ(guess(ascii + "\xFF" + ascii + accents), Encoding::latin1);
  EXPECT_EQ(guess(ascii + accents + "\xFF" + ascii), Encoding::damaged_utf8);
  EXPECT_EQ(guess(ascii + "\xFF" + accents + ascii), Encoding::damaged_utf8);
}

TEST(EncodingTest, NamesTheConversionCommand) {
  const auto explain = [](const fs::path& path, const std::string& text) {
    return explain_invalid_utf8(path, text, find_invalid_utf8(text));
  };
  EXPECT_THAT(explain("notes/a.txt", "caf\xE9"), AllOf(HasSubstr("`iconv -f latin1 -t utf-8 notes/a.txt > a.utf8.txt`"),
                                                       HasSubstr("--replace-invalid-utf8")));
  EXPECT_THAT(explain("a.txt.gz", "caf\xE9"), HasSubstr("`zcat a.txt.gz | iconv -f latin1 -t utf-8 > a.utf8.txt`"));
  EXPECT_THAT(explain("my notes.txt", "\x93x\x94"), HasSubstr("iconv -f windows-1252 -t utf-8 'my notes.txt' > "));
  EXPECT_THAT(explain("a.txt", "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9 \xFF"),
              AllOf(HasSubstr("damaged"), Not(HasSubstr("iconv"))));
}

// The text in UTF-16 or UTF-32.
std::string wide(const std::u32string& text, int width, bool big_endian) {
  std::string bytes;
  const auto put = [&](uint32_t unit) {
    for (int i = 0; i < width; ++i) bytes += static_cast<char>(unit >> 8 * (big_endian ? width - 1 - i : i));
  };
  for (const char32_t c : text) {
    if (width == 4 || c < 0x10000) {
      put(c);
    } else {
      put(0xD800 + ((c - 0x10000) >> 10));
      put(0xDC00 + ((c - 0x10000) & 0x3FF));
    }
  }
  return bytes;
}

TEST(EncodingTest, DetectsWideTextWithAndWithoutAByteOrderMark) {
  for (const std::u32string text :
       {U"{\"text\":\"row 0 hello\"}\n", U"专家混合模型, 令牌和路由器\n", U"a \U0001F642"}) {
    for (const int width : {2, 4}) {
      for (const bool big : {false, true}) {
        const std::string name = cat("UTF-", 8 * width, " (", big ? "big" : "little", "-endian): ");
        const std::string from = cat("iconv -f utf-", 8 * width);
        EXPECT_THAT(explain_wide_text("a.jsonl", wide(text, width, big)),
                    AllOf(HasSubstr(name), HasSubstr(from + (big ? "be" : "le") + " -t utf-8 a.jsonl > a.utf8.jsonl")));
        // iconv drops a byte-order mark unless it is told the byte order; the text may also be truncated.
        const std::string marked = wide(U"\uFEFF" + text, width, big);
        EXPECT_THAT(explain_wide_text("a.jsonl", marked), AllOf(HasSubstr(name), HasSubstr(from + " -t utf-8")));
        EXPECT_THAT(explain_wide_text("a.jsonl", marked.substr(0, marked.size() - 1)), HasSubstr(name));
      }
    }
  }
}

TEST(EncodingTest, OtherBytesAreNotWideText) {
  for (const std::string& bytes : {std::string(), std::string("plain text"), std::string("\xC3\xA9t\xC3\xA9"),
                                   std::string("\x7f\x45LF\0\1\2\3", 8), std::string("\x89PNG\r\n\0\0\0\rIHDR", 14),
                                   std::string(64, '\0'), std::string("a\0\1\0b\0", 6)})
    EXPECT_EQ(explain_wide_text("a", bytes), "") << bytes;
}

}  // namespace
}  // namespace witan
