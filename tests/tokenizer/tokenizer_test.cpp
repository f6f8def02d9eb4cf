#include "witan/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/scanners.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan {
namespace {

TokenizerSpec byte_spec() {
  BpeTrainerConfig config;
  config.vocab_size = 256;
  config.special_tokens.clear();
  return BpeTrainer(config).train().spec();
}

int32_t add(TokenizerSpec& spec, AddedToken token) {
  token.id = static_cast<int32_t>(spec.tokens.size());
  token.in_model = false;
  spec.tokens.push_back(token.text);
  spec.added.push_back(token);
  return token.id;
}

TEST(Tokenizer, RoundTripsAnyBytes) {
  BpeTrainerConfig config;
  config.vocab_size = 400;
  BpeTrainer trainer(config);
  trainer.add("the cat sat on the mat and the cat sat on the hat; \xFF\xFE\xFF\xFE then 1234 1234");
  const Tokenizer tokenizer = trainer.train();
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (size_t n = random() % 60; n > 0; --n)
      text += random() % 3 == 0 ? std::string("the cat") : std::string(1, static_cast<char>(random()));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, FindsSpecialTokensOnlyOnRequest) {
  TokenizerSpec spec = byte_spec();
  const int32_t end = add(spec, {0, "<|endoftext|>"});
  const int32_t ends = add(spec, {0, "<|endoftext|>s"});
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.encode("a<|endoftext|>b").size(), 15u);
  EXPECT_EQ(tokenizer.encode("a<|endoftext|>b", true).size(), 3u);
  EXPECT_EQ(tokenizer.encode("<|endoftext|><|endoftext|>s", true),
            (std::vector<int32_t>{end, ends}));  // the longest match
  EXPECT_EQ(tokenizer.encode("<|endoftex", true).size(), 10u);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{end}), "<|endoftext|>");
  EXPECT_EQ(tokenizer.end_of_text(), end);
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, std::string_view text, const std::vector<TextSpan>& literal) {
  std::vector<int32_t> ids;
  tokenizer.encode_to(text, ids, literal);
  return ids;
}

// Special tokens spelled by a message are text; those spelled by the template are tokens, whatever text is adjacent.
TEST(Tokenizer, EncodesSpecialTokensInLiteralTextAsText) {
  TokenizerSpec spec = byte_spec();
  const int32_t end = add(spec, {0, "<e>"});
  add(spec, {0, "<e>x"});
  const int32_t plain = add(spec, {0, "<t>", false});
  const Tokenizer tokenizer(spec);
  const auto ids = [&](std::string_view before, std::optional<int32_t> token = {}, std::string_view behind = "") {
    std::vector<int32_t> all = tokenizer.encode(before);
    if (token) all.push_back(*token);
    for (const int32_t id : tokenizer.encode(behind)) all.push_back(id);
    return all;
  };
  const std::string text = "a<e>b<e>";
  EXPECT_EQ(encoded(tokenizer, text, {}), tokenizer.encode(text, true));
  EXPECT_EQ(encoded(tokenizer, text, {{0, text.size()}}), tokenizer.encode(text, false));
  EXPECT_EQ(encoded(tokenizer, text, {{0, 4}}), ids("a<e>b", end));
  for (const TextSpan part : {TextSpan{5, 6}, TextSpan{6, 7}, TextSpan{7, 8}})
    EXPECT_EQ(encoded(tokenizer, text, {part}), ids("a", end, "b<e>"));
  EXPECT_EQ(encoded(tokenizer, "<e>x", {{3, 4}}), ids("", end, "x")) << "the shorter token is the template's";
  EXPECT_EQ(encoded(tokenizer, "<t>", {{0, 3}}), std::vector<int32_t>{plain}) << "not a special token";
}

TEST(Tokenizer, TracksLiteralTextThroughTheNormalizer) {
  TokenizerSpec spec = byte_spec();
  spec.normalizers = {NormalizerStep{}};
  const int32_t end = add(spec, {0, "<e>", true, true});
  const Tokenizer tokenizer(spec);
  const std::string text = "<e>e\u0301<e><e>", message = "e\u0301<e>";
  std::vector<int32_t> expected = tokenizer.encode(message);
  expected.insert(expected.begin(), end);
  expected.push_back(end);
  EXPECT_EQ(encoded(tokenizer, text, {{3, 3 + message.size()}}), expected);
}

// Also for tokenizers where the number of bytes does not bound the number of tokens.
TEST(Tokenizer, TextsFitIfTheyHaveNoMoreTokens) {
  using Kind = NormalizerStep::Kind;
  BpeTrainerConfig config;
  config.vocab_size = 400;
  BpeTrainer trainer(config);
  trainer.add("the cat sat on the mat and the cat sat on the hat; e\u0301e\u0301 \u00e9\u00e9 then 1234 1234");
  const TokenizerSpec plain = trainer.train().spec();
  std::vector<TokenizerSpec> specs(7, plain);
  specs[1].normalizers = {{Kind::nfc}};
  specs[2].normalizers = {{.kind = Kind::replace, .pattern = "the cat", .content = ""}, {.kind = Kind::strip}};
  specs[3].patterns.insert(specs[3].patterns.begin(), SplitStep(" +"));
  specs[3].patterns[0].behavior = SplitBehavior::removed;
  AddedToken swallows{0, "<x>"};
  swallows.special = false;
  swallows.lstrip = swallows.rstrip = true;
  add(specs[4], swallows);
  swallows.lstrip = false;
  add(specs[5], swallows);
  specs[6].normalizers = {{Kind::nfc}};
  add(specs[6], {0, "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9", false, true});  // two thirds of its decomposition
  std::mt19937 random(1);
  for (const TokenizerSpec& spec : specs) {
    const Tokenizer tokenizer(spec);
    for (int round = 0; round < 200; ++round) {
      std::string text;
      for (size_t n = random() % 60; n > 0; --n)
        text += std::array{"the cat", "e\u0301", "      ", "<x>", "7", "; "}[random() % 6];
      if (round < 20) text = round < 10 ? "<x>" + std::string(static_cast<size_t>(20 * round), ' ') : "";
      for (int n = 60; round >= 10 && round < 20 && n > 0; --n) text += "e\u0301";
      const auto tokens = static_cast<int64_t>(tokenizer.encode(text).size());
      EXPECT_TRUE(tokenizer.fits(text, tokens)) << text;
      if (tokens > 0) {
        EXPECT_FALSE(tokenizer.fits(text, tokens - 1)) << text;
      }
    }
  }
}

// The end of a text that is too long is not read: here it could not be encoded.
TEST(Tokenizer, StopsEncodingTextsThatDoNotFit) {
  TokenizerSpec spec;
  spec.model = TokenizerSpec::Model::unigram;
  spec.byte_level = false;
  spec.tokens = {"a", " "};
  spec.scores = {-1, -1};
  spec.patterns = {SplitStep(" ")};
  const Tokenizer tokenizer(spec);
  EXPECT_THROW(tokenizer.encode("a a b"), DataError);
  EXPECT_FALSE(tokenizer.fits("a a b", 2));
  EXPECT_TRUE(tokenizer.fits("a a", 3));
}

TEST(Tokenizer, AlwaysFindsOrdinaryAddedTokens) {
  TokenizerSpec spec = byte_spec();
  const int32_t spaces = add(spec, {0, "    ", false});
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.encode("    x"), (std::vector<int32_t>{spaces, *tokenizer.token_id("x")}));
  EXPECT_EQ(tokenizer.end_of_text(), std::nullopt);
}

TEST(Tokenizer, NormalizesBeforeMatchingNormalizedTokens) {
  TokenizerSpec spec = byte_spec();
  spec.normalizers = {NormalizerStep{}};
  const int32_t raw = add(spec, {0, "e\u0301!", false, false});
  const int32_t normalized = add(spec, {0, "é?", false, true});
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.encode("e\u0301!"), std::vector<int32_t>{raw});
  EXPECT_EQ(tokenizer.encode("e\u0301?"), std::vector<int32_t>{normalized});
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("xe\u0301")), "xé");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("e\u0301\xFF")), "e\u0301\xFF");  // not UTF-8: unchanged
}

TEST(Tokenizer, AddsThePrefixSpace) {
  TokenizerSpec spec = byte_spec();
  spec.prefix_space = true;
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab")), " ab");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" ab")), " ab");
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(Tokenizer, RecognizesEndTokensOfPublishedTokenizers) {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|eot_id|>", "<｜end▁of▁sentence｜>"}) {
    TokenizerSpec spec = byte_spec();
    const int32_t id = add(spec, {0, name});
    EXPECT_EQ(Tokenizer(spec).end_of_text(), id) << name;
  }
}

TEST(Tokenizer, HashChangesWithTheEncoding) {
  const TokenizerSpec plain = byte_spec();
  TokenizerSpec cased = plain, matched = plain, merged = plain, added = plain, normalized = plain;
  cased.patterns = {std::string(kGpt2Pattern)};
  matched.ignore_merges = true;
  merged.merges.push_back({0, 1, 0});
  add(added, {0, "<x>"});
  normalized.normalizers = {NormalizerStep{}};
  const std::string hash = Tokenizer(plain).hash();
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(Tokenizer(plain).hash(), hash);
  for (const TokenizerSpec& other : {cased, matched, merged, added, normalized})
    EXPECT_NE(Tokenizer(other).hash(), hash);
  std::vector<std::string> hashes = {Tokenizer(added).hash()};
  for (const auto flag : {&AddedToken::single_word, &AddedToken::lstrip, &AddedToken::rstrip}) {
    TokenizerSpec flagged = added;
    flagged.added.back().*flag = true;
    EXPECT_EQ(std::ranges::count(hashes, Tokenizer(flagged).hash()), 0) << "flags of added tokens count";
    hashes.push_back(Tokenizer(flagged).hash());
  }
}

TEST(Tokenizer, RefusesIdsOutsideTheVocabulary) {
  const Tokenizer tokenizer(byte_spec());
  for (const int32_t id : {-1, 256, INT32_MAX}) {
    const auto message = test::message_of<DataError>([&] { tokenizer.decode(std::vector<int32_t>{0, id}); });
    EXPECT_NE(message.find("is outside the vocabulary of 256 tokens"), std::string::npos) << message;
  }
}

TEST(Tokenizer, CanBeSharedByThreads) {
  BpeTrainerConfig config;
  config.vocab_size = 300;
  BpeTrainer trainer(config);
  trainer.add("abc abcd abcde abcdef abc abcd abcde abcdef");
  TokenizerSpec spec = trainer.train().spec();
  spec.patterns.insert(spec.patterns.begin(), "[a-z]+|[^a-z]+");  // uses Oniguruma as well
  const Tokenizer tokenizer(spec);
  const std::string text = "abcdef abc abcd <|endoftext|> xyz " + std::string(200, 'a');
  const std::vector<int32_t> expected = tokenizer.encode(text, true);
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, copy = tokenizer] {
      for (int i = 0; i < 50; ++i) same += copy.encode(text, true) == expected;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, 200);
}

Tokenizer bytes_only() {
  BpeTrainerConfig config;
  config.vocab_size = 257;
  return BpeTrainer(config).train();
}

TEST(StreamingDecoder, PiecesAreValidAndFormTheText) {
  const Tokenizer tokenizer = bytes_only();
  const std::string text = "aé日本😀\u0301z";
  StreamingDecoder decoder(tokenizer);
  std::string streamed;
  int withheld = 0;
  for (const int32_t id : tokenizer.encode(text)) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(find_invalid_utf8(piece), std::string::npos);
    withheld += piece.empty();
    streamed += piece;
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(withheld, 1 + 2 + 2 + 3 + 1);  // all bytes but the last of each character
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamingDecoder, ReplacesInvalidSequences) {
  const Tokenizer tokenizer = bytes_only();
  StreamingDecoder decoder(tokenizer);
  const auto push = [&](const char* byte) { return decoder.push(*tokenizer.token_id(byte)); };
  EXPECT_EQ(push("\xFF"), "\uFFFD");
  EXPECT_EQ(push("\xE6"), "");
  EXPECT_EQ(push("a"), "\uFFFDa");
  EXPECT_EQ(push("\xED"), "");
  EXPECT_EQ(push("\xA0"), "\uFFFD");  // a surrogate: no third byte makes it valid
  EXPECT_EQ(push("\xF0"), "");
  EXPECT_EQ(push("\x9F"), "");
  EXPECT_EQ(decoder.flush(), "\uFFFD");
  EXPECT_EQ(decoder.flush(), "");
  EXPECT_THROW(decoder.push(257), DataError);
}

// SentencePiece puts a space before a text, which is not part of it.
TEST(StreamingDecoder, RemovesTheSpaceBeforeAText) {
  const Tokenizer tokenizer = Tokenizer::load(fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/kinds/llama2.json");
  for (const char* text : {"the council", "  the council", "é", "", " ", "   "}) {
    std::string whole, rest;
    StreamingDecoder from_the_start(tokenizer, true), inside(tokenizer);
    for (const int32_t id : tokenizer.encode(text)) {
      whole += from_the_start.push(id);
      rest += inside.push(id);
    }
    EXPECT_EQ(whole, text);
    EXPECT_EQ(rest, *text ? cat(' ', text) : "");
    EXPECT_EQ(whole, tokenizer.decode(tokenizer.encode(text)));
  }
}

// If a model's first token lacks that space, no later token loses its own.
TEST(StreamingDecoder, RemovesNoSpaceBehindTheFirstToken) {
  const Tokenizer tokenizer = Tokenizer::load(fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/kinds/llama2.json");
  const auto token_of = [&](std::string_view bytes) {
    int32_t id = 0;
    while (id < tokenizer.vocab_size() && tokenizer.token_bytes(id) != bytes) ++id;
    return id;
  };
  StreamingDecoder decoder(tokenizer, true);
  EXPECT_EQ(decoder.push(token_of("e")), "e");
  EXPECT_EQ(decoder.push(token_of(" the")), " the");
}

TEST(StreamingDecoder, FindsIncompleteSuffixes) {
  EXPECT_EQ(incomplete_utf8_suffix(""), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("é"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xC3"), 1u);
  EXPECT_EQ(incomplete_utf8_suffix("\xE6\x97"), 2u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x80"), 0u);      // overlong
  EXPECT_EQ(incomplete_utf8_suffix("\xF4\x90"), 0u);      // above U+10FFFF
  EXPECT_EQ(incomplete_utf8_suffix("\xC1"), 0u);          // never begins a character
  EXPECT_EQ(incomplete_utf8_suffix("\x80\x80\x80"), 0u);  // no start byte in reach
}

}  // namespace
}  // namespace witan
