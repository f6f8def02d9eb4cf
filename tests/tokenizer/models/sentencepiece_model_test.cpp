#include <gtest/gtest.h>

#include <array>
#include <random>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/tokenizer/models/sentencepiece.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

std::string model_bytes(const char* name = "unigram.model") {
  return read_file(fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/kinds" / name);
}

// A length-delimited field of protobuf's wire format.
std::string field(int number, std::string_view bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) + std::string(bytes);
}
std::string piece(std::string_view text, int type) {
  return field(1, field(1, text) + std::string("\x18") + static_cast<char>(type));
}
std::string message(const std::string& bytes) {
  return test::message_of<Error>([&] { parse_sentencepiece_model(bytes, "m.model"); });
}

TEST(SentencePieceModel, ReadsFilesOfTheTrainer) {
  const SentencePieceModel model = parse_sentencepiece_model(model_bytes(), "m.model");
  EXPECT_EQ(model.pieces.size(), 175u);
  EXPECT_EQ(model.pieces[0].text, "<unk>");
  EXPECT_EQ(model.pieces[3].text, "<ud>");
  EXPECT_EQ(model.pieces[3].type, SentencePieceModel::Type::user_defined);
  EXPECT_EQ(model.algorithm, SentencePieceModel::Algorithm::unigram);
  EXPECT_FALSE(model.charsmap.empty());
  EXPECT_TRUE(model.add_dummy_prefix && model.remove_extra_whitespaces && !model.byte_fallback);
  const SentencePieceModel bpe = parse_sentencepiece_model(model_bytes("bpe.model"), "m.model");
  EXPECT_EQ(bpe.algorithm, SentencePieceModel::Algorithm::bpe);
  EXPECT_TRUE(bpe.byte_fallback && !bpe.remove_extra_whitespaces);
}

TEST(SentencePieceModel, ErrorsNameTheDamage) {
  const std::string broken = "m.model: not a SentencePiece model, or a damaged one: ";
  EXPECT_EQ(message(""), broken + "no piece is of type unknown");
  EXPECT_EQ(message("\x0A\x7F"),
            broken + "field 1 declares 127 bytes, but only 0 are left at byte 2; download the file again");
  EXPECT_EQ(message("\x0B"), broken + "field 1 has the wire type 3 at byte 1; download the file again");
  EXPECT_EQ(message(std::string(11, '\xFF')),
            broken + "a number has more than ten bytes at byte 10; download the file again");
  EXPECT_EQ(message(piece("a", 7)), broken + "a piece has the type 7 at byte 7; download the file again");
  EXPECT_EQ(message(field(1, "")), broken + "a piece is empty at byte 2; download the file again");
  EXPECT_EQ(message(piece("u", 2) + piece("a", 1) + piece("a", 1)), "m.model: the piece \"a\" appears twice (id 2)");
  EXPECT_NE(message(piece("u", 2) + piece("a", 1)).find("ends before the settings"), std::string::npos);
  EXPECT_EQ(message(piece("u", 2) + piece("v", 2)), "m.model: the pieces 0 and 1 are both of type unknown");
  EXPECT_NE(message(piece("u", 2) + piece("a", 5)).find("\"a\" (id 1) is marked unused, which is not supported"),
            std::string::npos);
  EXPECT_NE(message(piece("u", 2) + field(2, "\x18\x03")).find("a SentencePiece model of type word is not supported"),
            std::string::npos);
}

// Among merges with equal scores the leftmost comes first, whichever piece has the lower id.
TEST(SentencePieceModel, MergesEqualScoresFromTheLeft) {
  const std::string trainer = field(2, "\x18\x02"), normalizer = field(3, std::string("\x18\x00\x20\x00", 4));
  const std::string model = piece("<unk>", 2) + piece("a", 1) + piece("b", 1) + piece("ba", 1) + piece("ab", 1);
  const Tokenizer tokenizer(sentencepiece_spec(model + trainer + normalizer, "m.model"));
  EXPECT_EQ(tokenizer.encode("aba"), (std::vector<int32_t>{4, 1}));
  EXPECT_EQ(tokenizer.encode("baba"), (std::vector<int32_t>{3, 3}));
}

// Some files, such as Gemma 4's, have their settings before the pieces.
TEST(SentencePieceModel, ReadsSettingsBeforeThePieces) {
  const std::string given = model_bytes("bpe.model");
  std::string first, settings;
  size_t of_last = 0;
  for (size_t at = 0; at < given.size();) {  // all fields are of wire type 2
    size_t end = at + 1, length = 0;
    for (int shift = 0;; shift += 7) {
      length |= static_cast<size_t>(given[end] & 0x7F) << shift;
      if (!(given[end++] & 0x80)) break;
    }
    end += length;
    (given[at] == 0x0A ? first : settings) += given.substr(at, end - at);
    if (given[at] == 0x0A) of_last = end - at;
    at = end;
  }
  const std::string other = settings + first;
  ASSERT_NE(other, given);
  EXPECT_TRUE(looks_like_sentencepiece(other));
  for (const char* text : {"the council of the king", " a<ud>b \n \u65e5"})
    EXPECT_EQ(Tokenizer(sentencepiece_spec(other, "m")).encode(text),
              Tokenizer(sentencepiece_spec(given, "m")).encode(text));
  EXPECT_NE(message(other.substr(0, other.size() - of_last)).find("it ends after 559 of the 560 pieces"),
            std::string::npos);
  for (const char* text : {"", "\x12", "\x12\x7F", "\x12\xFF\xFF\xFF\xFF\xFF\xFF", "\x22 a\", \"b\""})
    EXPECT_FALSE(looks_like_sentencepiece(text));
}

TEST(SentencePiece, TextsFitIfTheyHaveNoMoreTokens) {
  std::mt19937 random(1);
  for (const char* name : {"unigram.model", "bpe.model"}) {
    const Tokenizer tokenizer(sentencepiece_spec(model_bytes(name), name));
    for (int round = 0; round < 200; ++round) {
      std::string text;
      for (size_t n = random() % 40; n > 0; --n)
        text += std::array{"the council", "  ", "<ud>", "\u65e5\u672c", "\u2581", "\xE2"}[random() % 6];
      const auto tokens = static_cast<int64_t>(tokenizer.encode(text).size());
      EXPECT_TRUE(tokenizer.fits(text, tokens)) << text;
      if (tokens > 0) {
        EXPECT_FALSE(tokenizer.fits(text, tokens - 1)) << text;
      }
    }
  }
}

// Here an unknown character takes one token per byte, so the length of a text is enough to decide.
TEST(SentencePiece, EncodesOnlyAPrefixOfTooLongText) {
  const SentencePiece model(parse_sentencepiece_model(model_bytes("bpe.model"), "bpe.model"));
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "\u65e5";
  std::vector<int32_t> all, some;
  model.encode(text, all);
  model.encode(text, some, 10);
  EXPECT_GT(some.size(), 10U);
  EXPECT_LT(some.size(), 1000U);
  EXPECT_GT(all.size(), 100'000U);
}

// Accepted models must encode any text; others must be refused.
void expect_harmless(const std::string& bytes, int& refused) {
  try {
    const Tokenizer tokenizer(sentencepiece_spec(bytes, "damaged"));
    for (const char* text : {"the council of the king", " \xFF\xE2\x96\x81  <ud> ab"})
      for (const int32_t id : tokenizer.encode(text)) ASSERT_LT(id, tokenizer.vocab_size());
  } catch (const Error&) {
    ++refused;
  }
}

TEST(SentencePieceModel, EveryTruncationIsRefusedOrHarmless) {
  const std::string whole = model_bytes();
  int refused = 0;
  for (size_t length = 0; length < whole.size(); ++length) expect_harmless(whole.substr(0, length), refused);
  EXPECT_GT(refused, 1500);
}

TEST(SentencePieceModel, DamagedBytesAreRefusedOrHarmless) {
  std::mt19937 random(3);
  int refused = 0;
  for (const char* name : {"unigram.model", "bpe_unknown.model"}) {
    const std::string whole = model_bytes(name);
    for (int round = 0; round < 400; ++round) {
      std::string damaged = whole;
      for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
      expect_harmless(damaged, refused);
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 790);
}

}  // namespace
}  // namespace witan
