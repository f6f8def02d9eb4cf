#include <gtest/gtest.h>

#include <random>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/tokenizer/files/base64.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/text/scanners.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

// A rank file with all bytes and some words.
std::string ranks_of(const std::vector<std::string>& words) {
  std::string file;
  for (int id = 0; id < 256; ++id) file += cat(to_base64(std::string(1, static_cast<char>(id))), " ", id, "\n");
  for (size_t i = 0; i < words.size(); ++i) file += cat(to_base64(words[i]), " ", 256 + i, "\n");
  return file;
}

std::string message(const std::string& file, const char* pattern = "gpt2") {
  return test::message_of<Error>([&] { parse_tiktoken(file, "r.tiktoken", pattern); });
}

TEST(Tiktoken, MergesByRankOfTheResult) {
  const Tokenizer tokenizer(parse_tiktoken(ranks_of({"bc", "ab", "abc", "xyz"}), "r", "gpt2"));
  EXPECT_EQ(tokenizer.encode("abc"), std::vector<int32_t>{258});
  EXPECT_EQ(tokenizer.encode("abcd"), (std::vector<int32_t>{258, 'd'}));  // b c first, then a bc
  EXPECT_EQ(tokenizer.encode("xyz"), std::vector<int32_t>{259});          // a whole word needs no merges
  EXPECT_EQ(tokenizer.encode("xyzz"), (std::vector<int32_t>{'x', 'y', 'z', 'z'}));
}

// If two merges give the same token, the leftmost goes first, whatever the ids of its halves.
TEST(Tiktoken, MergesEqualRanksFromTheLeft) {
  const Tokenizer tokenizer(parse_tiktoken(ranks_of({"aa", "aaa"}), "r", "gpt2"));
  EXPECT_EQ(tokenizer.encode("aaaaa"), (std::vector<int32_t>{256, 257}));
  EXPECT_EQ(tokenizer.encode("aaaaaaa"), (std::vector<int32_t>{256, 256, 257}));
}

TEST(Tiktoken, ErrorsNameTheDamage) {
  EXPECT_TRUE(looks_like_ranks(ranks_of({})));
  EXPECT_FALSE(looks_like_ranks("{\"a\": 1}"));
  EXPECT_FALSE(looks_like_ranks(""));
  const std::string end = "is not a token in base64, a space and an id from 0 to 16777215: download the file again";
  EXPECT_EQ(message("YQ== 0\nYg=\n"), "r.tiktoken: line 2, \"Yg=\", " + end);
  EXPECT_EQ(message("YQ== 16777216\n"), "r.tiktoken: line 1, \"YQ== 16777216\", " + end);
  EXPECT_EQ(message("YQ== -1\n"), "r.tiktoken: line 1, \"YQ== -1\", " + end);
  EXPECT_EQ(message("YQ== 1\nYg== 1\n"), "r.tiktoken: line 2 gives the id 1 again");
  EXPECT_EQ(message("= 1\nYg== 1\n"), "r.tiktoken: line 2 gives the id 1 again");
  EXPECT_EQ(message("= 1\n= 2\n"), "r.tiktoken: line 2 gives the empty token again");
  EXPECT_EQ(message("YQ== 0\nYg== 70000\n"),
            "r.tiktoken: line 2 gives the id 70000 in a file of 3 lines: download the file again");
  EXPECT_EQ(message("YQ== 1\nYQ== 2\n"), "r.tiktoken: the token 2, \"a\", appears twice");
  EXPECT_NE(message(ranks_of({std::string(1025, 'a')})).find("has 1025 bytes, more than 1024"), std::string::npos);
}

TEST(Tiktoken, DamagedBytesAreRefusedOrHarmless) {
  const std::string file = ranks_of({"the", "th", "he"});
  std::mt19937 random(4);
  int refused = 0;
  for (int round = 0; round < 500; ++round) {
    std::string damaged = file;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      Tokenizer(parse_tiktoken(damaged, "damaged", "gpt2")).encode("the thing");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
}

// A file with as many ranks as Qwen 3.5's.
TEST(Tiktoken, RecognizesPublishedFilesByTheirRanks) {
  std::vector<std::string> words;
  for (int i = 256; i < 248044; ++i) words.push_back(cat("w", i));
  const TokenizerSpec spec = parse_tiktoken(ranks_of(words), "r", "");
  EXPECT_EQ(spec.patterns, std::vector<SplitStep>{std::string(kQwen35Pattern)});
  EXPECT_EQ(spec.normalizers.size(), 1u);
  EXPECT_EQ(spec.added.size(), 33u);
  EXPECT_EQ(spec.tokens[248046], "<|im_end|>");
  EXPECT_EQ(spec.tokens[248069], "</think>");
  EXPECT_EQ(split_pattern_named("qwen3.5"), kQwen35Pattern);
}

// Whisper's multilingual.tiktoken ends with "= 50256": a token without bytes.
TEST(Tiktoken, ReadsTheRankWithoutBytesOfWhisper) {
  std::vector<std::string> words;
  for (int i = 256; i < 50256; ++i) words.push_back(cat("w", i));
  const Tokenizer tokenizer(parse_tiktoken(ranks_of(words) + "= 50256\n", "r", ""));
  EXPECT_EQ(tokenizer.vocab_size(), 50258);
  EXPECT_EQ(tokenizer.end_of_text(), 50257);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{0, 50256}), tokenizer.token_bytes(0));
  const std::string twice = ranks_of({}) + "= 256\n= 257\n";
  EXPECT_THROW(parse_tiktoken(twice, "r", "gpt2"), CorruptionError);
}

TEST(Base64, RoundTrips) {
  std::mt19937 random(6);
  for (size_t length = 0; length < 40; ++length) {
    std::string bytes;
    for (size_t i = 0; i < length; ++i) bytes += static_cast<char>(random());
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
  }
  EXPECT_EQ(to_base64("any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");  // RFC 2045's alphabet with RFC 4648's padding
  for (const char* bad : {"YQ=", "YQ", "Y===", "YR==", "Y Q=", "YQ==YQ=="})
    EXPECT_EQ(from_base64(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace witan
