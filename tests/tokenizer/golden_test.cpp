// Compares with Hugging Face tokenizers: make_golden.py and make_splits.py in tests/golden/tokenizer made the files.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/temp_folder.h"
#include "witan/base/json.h"
#include "witan/tokenizer/text/byte_alphabet.h"
#include "witan/tokenizer/text/normalizer.h"
#include "witan/tokenizer/text/pretokenizer.h"
#include "witan/tokenizer/text/unicode.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan {
namespace {

const fs::path kGolden = fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer";

Json golden(const char* name) {
  return parse_json(read_file(kGolden / name), name);
}

void expect_golden_ids(const Tokenizer& tokenizer, const Json& encoded, const Json& expected) {
  for (size_t i = 0; i < encoded["texts"].size(); ++i) {
    const auto text = encoded["texts"][i].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text), expected["ids"][i].get<std::vector<int32_t>>()) << encoded["texts"][i];
    EXPECT_EQ(tokenizer.encode(text, true), expected["ids_with_special"][i].get<std::vector<int32_t>>())
        << encoded["texts"][i];
  }
}

TEST(Golden, EncodesLikeHuggingFace) {
  const Json encoded = golden("encoded.json");
  ASSERT_EQ(encoded["cases"].size(), 6u);
  for (const Json& expected : encoded["cases"]) {
    SCOPED_TRACE(expected["tokenizer"]);
    expect_golden_ids(Tokenizer::load(kGolden / expected["tokenizer"].get<std::string>()), encoded, expected);
  }
}

TEST(Golden, SavedAndLoadedTokenizersAreTheSame) {
  const test::TempFolder folder;
  const Json encoded = golden("encoded.json");
  for (const Json& expected : encoded["cases"]) {
    SCOPED_TRACE(expected["tokenizer"]);
    const Tokenizer first = Tokenizer::load(kGolden / expected["tokenizer"].get<std::string>());
    first.save(folder / "tokenizer.json");
    const Tokenizer second = Tokenizer::load(folder / "tokenizer.json");
    EXPECT_EQ(first.hash(), second.hash());
    EXPECT_EQ(first.spec().post_processor, second.spec().post_processor);
    expect_golden_ids(second, encoded, expected);
    second.save(folder / "again.json");
    EXPECT_EQ(read_file(folder / "tokenizer.json"), read_file(folder / "again.json"));
  }
}

TEST(Golden, DecodesToTheText) {
  const Json encoded = golden("encoded.json");
  for (const char* name : {"gpt2.json", "llama3.json", "digits.json", "o200k.json"}) {
    const Tokenizer tokenizer = Tokenizer::load(kGolden / name);
    for (const Json& text : encoded["texts"]) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text.get<std::string>())), text.get<std::string>());
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text.get<std::string>(), true)), text.get<std::string>());
    }
  }
}

TEST(Golden, TrainsTheMergesThatHuggingFaceTrains) {
  const Json trained = golden("trained.json");
  for (const char* pattern : {"gpt2", "llama3"}) {
    SCOPED_TRACE(pattern);
    const Json& expected = trained[pattern];
    BpeTrainerConfig config;
    config.vocab_size = 500;
    config.pattern = pattern;
    config.special_tokens.clear();
    BpeTrainer trainer(config);
    trainer.add(trained["corpus"].get<std::string>());
    const TokenizerSpec spec = trainer.train().spec();
    ASSERT_EQ(spec.merges.size(), expected["merges"].size());
    ASSERT_EQ(spec.tokens.size(), expected["vocab"].size());
    for (size_t id = 0; id < spec.tokens.size(); ++id)
      EXPECT_EQ(expected["vocab"].value(to_byte_alphabet(spec.tokens[id]), size_t{9999}), id);
    for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
      const Merge& merge = spec.merges[rank];
      EXPECT_EQ(expected["merges"][rank][0], to_byte_alphabet(spec.tokens[static_cast<size_t>(merge.left)])) << rank;
      EXPECT_EQ(expected["merges"][rank][1], to_byte_alphabet(spec.tokens[static_cast<size_t>(merge.right)])) << rank;
    }
  }
}

template <class Splitter>
std::vector<std::string> pieces_of(const Splitter& splitter, const std::string& text) {
  std::vector<std::string> pieces;
  splitter.split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(Golden, SplitsLikeHuggingFace) {
  const Json all = golden("splits.json")["splits"];
  ASSERT_GT(all.size(), 25u);
  int scanners = 0;
  for (const Json& split : all) {
    const auto pattern = split["pattern"].get<std::string>();
    SCOPED_TRACE(split["name"]);
    const Pretokenizer known({pattern});
    const RegexSplitter any(pattern);
    scanners += scanner_for(pattern) != nullptr;
    for (const Json& one : split["cases"]) {
      const auto text = one[0].get<std::string>();
      const auto expected = one[1].get<std::vector<std::string>>();
      ASSERT_EQ(pieces_of(known, text), expected) << one[0];
      ASSERT_EQ(pieces_of(any, text), expected) << one[0];
    }
  }
  EXPECT_GE(scanners, 10);  // patterns of published tokenizers do not fall back to Oniguruma
}

TEST(Golden, SplitsDigitsLikeHuggingFace) {
  const Json all = golden("splits.json")["digits"];
  for (const Json& digits : all) {
    const Pretokenizer splitter({std::string(digits["individual"].get<bool>() ? kDigitPattern : kDigitRunPattern)});
    for (const Json& one : digits["cases"])
      ASSERT_EQ(pieces_of(splitter, one[0].get<std::string>()), one[1].get<std::vector<std::string>>()) << one[0];
  }
}

TEST(Golden, NormalizesLikeHuggingFace) {
  const Json all = golden("splits.json")["normalized"];
  for (const Json& one : all) EXPECT_EQ(to_nfc(one[0].get<std::string>()), one[1].get<std::string>()) << one[0];
}

TEST(Golden, PropertiesMatchThoseOfHuggingFace) {
  const Json properties = golden("splits.json")["properties"];
  ASSERT_GT(properties.size(), 50u);
  for (const auto& [name, expected] : properties.items()) {
    const auto ranges = characters_with(name);
    ASSERT_TRUE(ranges) << name;
    uint64_t count = 0, sum = 0;
    for (const auto& [first, last] : *ranges)
      for (int32_t c = first; c <= last; ++c)
        if (c < 0xD800 || c > 0xDFFF) ++count, sum += static_cast<uint64_t>(c);
    EXPECT_EQ(count, expected[0]) << name;
    EXPECT_EQ(sum, expected[1]) << name;
  }
}

}  // namespace
}  // namespace witan
