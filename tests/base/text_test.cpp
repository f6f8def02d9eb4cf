#include "witan/base/text.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

TEST(FormatBytes, ShowsThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(15.9), "16 B") << "no fractions of bytes";
  EXPECT_EQ(format_bytes(1023.7), "1.00 KiB");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1.5 * (1 << 30)), "1.50 GiB");
  EXPECT_EQ(format_bytes(12.34 * (1 << 20)), "12.3 MiB");
  EXPECT_EQ(format_bytes(1020.0 * (1 << 20)), "1020 MiB");
  EXPECT_EQ(format_bytes(1023.9 * (1 << 20)), "1.00 GiB");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
}

TEST(FormatCount, NeverRoundsToATousandOfAUnit) {
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(0.25), "0.25");
  EXPECT_EQ(format_count(1000), "1.00 K");
  EXPECT_EQ(format_count(9996), "10.0 K");
  EXPECT_EQ(format_count(99960), "100 K");
  EXPECT_EQ(format_count(999499), "999 K");
  EXPECT_EQ(format_count(999999), "1.00 M");
  EXPECT_EQ(format_count(12.34e6), "12.3 M");
  EXPECT_EQ(format_count(3e18), "3000 P");
}

TEST(FormatDuration, ChangesUnitWithSize) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(9.44e-9), "0 s");
  EXPECT_EQ(format_duration(9.4e-8), "9.4e-05 ms");
  EXPECT_EQ(format_duration(0.0123), "12.3 ms");
  EXPECT_EQ(format_duration(0.1096), "110 ms");
  EXPECT_EQ(format_duration(0.99949), "999 ms");
  EXPECT_EQ(format_duration(0.9996), "1 s");
  EXPECT_EQ(format_duration(1.618), "1.62 s");
  EXPECT_EQ(format_duration(4.2), "4.2 s");
  EXPECT_EQ(format_duration(59.96), "1 min 0 s");
  EXPECT_EQ(format_duration(200), "3 min 20 s");
  EXPECT_EQ(format_duration(7500), "2 h 5 min");
  EXPECT_EQ(format_duration(3 * 86400 + 4 * 3600 + 59), "3 d 4 h");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "unknown");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "unknown");
  EXPECT_EQ(format_duration(1e30), "unknown");
}

TEST(ParseBytes, TakesTheUsualSpellings) {
  const std::pair<const char*, uint64_t> sizes[] = {
      {"0", 0},
      {"17", 17},
      {"17B", 17},
      {"1e9", 1'000'000'000},
      {"8GB", 8'000'000'000},
      {"8 GB", 8'000'000'000},
      {"80G", 80'000'000'000},
      {"1.5k", 1500},
      {"512MiB", 512ull << 20},
      {"2TiB", 2ull << 40},
      {"1.5KiB", 1536},
  };
  for (const auto& [text, bytes] : sizes) EXPECT_EQ(parse_bytes(text), bytes) << text;
}

TEST(ParseBytes, RefusesOtherText) {
  for (const char* text :
       {"", "GB", "8 X", "8GBB", "8BiB", "8Gb", "-1", "nan", "inf", "1e30", "9e18KB", "8GB ", "0x10"})
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { parse_bytes(text); }),
        cat("\"", text, "\" is not a size: write a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 8GB"));
}

TEST(Nearest, FindsTypos) {
  const std::vector<std::string> keys = {"num_layers", "hidden_size", "moe_router_topk", "lr"};
  EXPECT_EQ(nearest("num_layer", keys), "num_layers");
  EXPECT_EQ(nearest("hiden_size", keys), "hidden_size");
  EXPECT_EQ(nearest("moe_router_top_k", keys), "moe_router_topk");
  EXPECT_EQ(nearest("ls", keys), "lr");
  EXPECT_EQ(nearest("rl", keys), "lr") << "swapped neighbours";
  EXPECT_EQ(nearest("nmu_layres", keys), "num_layers") << "two typos in ten letters";
  EXPECT_EQ(nearest("tokenizer", keys), "");
  EXPECT_EQ(nearest("anything", {}), "");
}

// One typo, or one per three letters; with more it is another word.
TEST(Nearest, IgnoresDistantWords) {
  EXPECT_EQ(nearest("zero", {"lora", "nero4"}), "");
  EXPECT_EQ(nearest("tp", {"cpu", "lr"}), "");
  EXPECT_EQ(nearest("--tp", {"--lr", "--gpu"}), "") << "dashes do not count as letters";
  EXPECT_EQ(nearest("fsdp", {"auto", "optim"}), "");
  EXPECT_EQ(nearest("length", {"lengths"}), "lengths");
  EXPECT_EQ(nearest("legnht", {"length"}), "length") << "two typos in six letters";
  EXPECT_EQ(nearest("lnght", {"length"}), "") << "two typos in five letters";
}

TEST(Nearest, IsFastOnLongWords) {
  EXPECT_EQ(nearest(std::string(1 << 22, 'x'), std::vector<std::string>(200, "num_layers")), "");
}

TEST(Suggestion, IsAClauseOrNothing) {
  EXPECT_EQ(suggestion("num_layer", {"num_layers"}), " (did you mean num_layers?)");
  EXPECT_EQ(suggestion("zzzzzz", {"num_layers"}), "");
  const std::pair<std::string_view, std::string_view> others[] = {{"tp", "tensor"}, {"pp", "pipeline"}};
  EXPECT_EQ(suggestion("tp", {"tensor", "top"}, others), " (did you mean tensor?)");
  EXPECT_EQ(suggestion("pp", {"tensor"}, others), "") << "not a valid choice here";
  const std::pair<std::string_view, std::string_view> longer[] = {{"tensor_parallel", "tp"}, {"tensor_size", "tp"}};
  EXPECT_EQ(suggestion("tensor_paralel", {"tp"}, longer), " (did you mean tp?)") << "a typo of another name";
  EXPECT_EQ(suggestion("tensor_sise", {"tensor_sises", "tp"}, longer), " (did you mean tensor_sises?)");
}

TEST(Clipped, KeepsMessagesShortAndPrintable) {
  EXPECT_EQ(clipped("plain \xC3\xA9"), "plain \xC3\xA9");
  EXPECT_EQ(clipped(std::string("a\0b\n\x7F\xFF", 6)), "a\\x00b\\x0A\\x7F\\xFF");
  EXPECT_EQ(clipped("\xC2\x80\xC2\x9F\xC2\xA0"), "\\xC2\\x80\\xC2\\x9F\xC2\xA0") << "U+0080 to U+009F are controls";
  EXPECT_EQ(clipped("abcdef", 6), "abcdef");
  EXPECT_EQ(clipped("abcdefg", 6), "abcdef...");
  EXPECT_EQ(clipped("abcde\xC3\xA9", 6), "abcde...");  // characters are not split
}

TEST(ShellWord, QuotesForTheShell) {
  EXPECT_EQ(shell_word("runs/a-1.b_c,d=%+:@"), "runs/a-1.b_c,d=%+:@");
  EXPECT_EQ(shell_word("my runs"), "'my runs'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$(x)"), "'$(x)'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(FindInvalidUtf8, AcceptsExactlyTheScalarValues) {
  const auto encode = [](uint32_t c) {
    std::string s;
    if (c < 0x80) return s += static_cast<char>(c);
    if (c < 0x800) return s += static_cast<char>(0xC0 | c >> 6), s += static_cast<char>(0x80 | (c & 0x3F));
    if (c >= 0x10000) {
      s += static_cast<char>(0xF0 | c >> 18);
      s += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    } else {
      s += static_cast<char>(0xE0 | c >> 12);
    }
    s += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    return s += static_cast<char>(0x80 | (c & 0x3F));
  };
  for (uint32_t c = 0; c < 0x120000; ++c) {
    const bool scalar = c < 0xD800 || (c > 0xDFFF && c < 0x110000);
    ASSERT_EQ(find_invalid_utf8(encode(c)) == std::string_view::npos, scalar) << c;
  }
}

TEST(FindInvalidUtf8, PointsAtTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2u);
  for (const char* bad : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF5\x80\x80\x80", "\xFE",
                          "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xC3(", "\xE2(\x82"})
    EXPECT_EQ(find_invalid_utf8(std::string("ok\xC3\xA9") + bad), 4u);
}

TEST(ReplaceInvalidUtf8, LeavesOneMarkPerSequence) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8("fine \xC3\xA9"), "fine \xC3\xA9");
  EXPECT_EQ(replace_invalid_utf8("a\xFFz"), "a" + mark + "z");
  EXPECT_EQ(replace_invalid_utf8("a\xE2\x82z"), "a" + mark + "z");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), mark);
  EXPECT_EQ(replace_invalid_utf8("\xFF\xFF"), mark + mark);
  EXPECT_EQ(replace_invalid_utf8(""), "");
}

TEST(Counted, UsesTheSingularForOne) {
  EXPECT_EQ(counted(0, "document"), "0 documents");
  EXPECT_EQ(counted(1, "document"), "1 document");
  EXPECT_EQ(counted(2, "document"), "2 documents");
}

}  // namespace
}  // namespace witan
