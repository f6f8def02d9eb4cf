#include "witan/tokenizer/streaming_decoder.h"

#include <gtest/gtest.h>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan {
namespace {

Tokenizer bytes_only() {
  BpeTrainerConfig config;
  config.vocab_size = 257;
  return BpeTrainer(config).train();
}

TEST(StreamingDecoder, EveryPieceIsValidAndTogetherTheyAreTheText) {
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
  EXPECT_EQ(withheld, 1 + 2 + 2 + 3 + 1);  // the bytes before each character's last
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamingDecoder, ReplacesWhatCannotBecomeACharacter) {
  const Tokenizer tokenizer = bytes_only();
  StreamingDecoder decoder(tokenizer);
  const auto push = [&](const char* byte) { return decoder.push(*tokenizer.token_id(byte)); };
  EXPECT_EQ(push("\xFF"), "\uFFFD");
  EXPECT_EQ(push("\xE6"), "");
  EXPECT_EQ(push("a"), "\uFFFDa");
  EXPECT_EQ(push("\xED"), "");
  EXPECT_EQ(push("\xA0"), "\uFFFD");  // a surrogate half: no third byte can help
  EXPECT_EQ(push("\xF0"), "");
  EXPECT_EQ(push("\x9F"), "");
  EXPECT_EQ(decoder.flush(), "\uFFFD");
  EXPECT_EQ(decoder.flush(), "");
  EXPECT_THROW(decoder.push(257), DataError);
}

// SentencePiece puts a space before a text, which is no part of it.
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

// A model's first token need not begin with that space: then no later token loses its own.
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

TEST(StreamingDecoder, IncompleteSuffix) {
  EXPECT_EQ(incomplete_utf8_suffix(""), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("é"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xC3"), 1u);
  EXPECT_EQ(incomplete_utf8_suffix("\xE6\x97"), 2u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x80"), 0u);      // overlong
  EXPECT_EQ(incomplete_utf8_suffix("\xF4\x90"), 0u);      // above U+10FFFF
  EXPECT_EQ(incomplete_utf8_suffix("\xC1"), 0u);          // never begins a character
  EXPECT_EQ(incomplete_utf8_suffix("\x80\x80\x80"), 0u);  // no beginning in reach
}

}  // namespace
}  // namespace witan
