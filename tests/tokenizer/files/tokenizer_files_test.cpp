// Compares every kind of tokenizer with its own library: tests/golden/tokenizer/make_kinds.py made the files.
#include "witan/tokenizer/files/tokenizer_files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

const fs::path kKinds = fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/kinds";

Json kinds() {
  return parse_json(read_file(kKinds / "encoded.json"), "encoded.json");
}

void expect_ids(const Tokenizer& tokenizer, const Json& texts, const Json& expected) {
  const bool unigram =
      tokenizer.spec().model == TokenizerSpec::Model::unigram && tokenizer.spec().sentencepiece.empty();
  for (size_t i = 0; i < texts.size(); ++i) {
    // Hugging Face's Unigram makes special tokens from plain text; Witan never does.
    if (unigram && texts[i].get<std::string>().find("</s>") != std::string::npos) continue;
    EXPECT_EQ(tokenizer.encode(texts[i].get<std::string>()), expected[i].get<std::vector<int32_t>>()) << texts[i];
  }
}

TEST(TokenizerFiles, EveryKindEncodesLikeItsLibrary) {
  const Json all = kinds();
  ASSERT_EQ(all["cases"].size(), 13u);
  for (const Json& one : all["cases"]) {
    SCOPED_TRACE(one["tokenizer"]);
    expect_ids(Tokenizer::load(kKinds / one["tokenizer"].get<std::string>()), all["texts"], one["ids"]);
  }
}

TEST(TokenizerFiles, EveryKindKeepsItsIdsInTokenizerJson) {
  const test::TempFolder folder;
  const Json all = kinds();
  for (const Json& one : all["cases"]) {
    SCOPED_TRACE(one["tokenizer"]);
    const Tokenizer first = Tokenizer::load(kKinds / one["tokenizer"].get<std::string>());
    first.save(folder / "tokenizer.json");
    const Tokenizer second = Tokenizer::load(folder / "tokenizer.json");
    EXPECT_EQ(second.hash(), first.hash());
    EXPECT_EQ(second.vocab_size(), first.vocab_size());
    expect_ids(second, all["texts"], one["ids"]);
    second.save(folder / "again.json");
    EXPECT_EQ(read_file(folder / "tokenizer.json"), read_file(folder / "again.json"));
  }
}

// make_scores.py builds the same texts and hashes their ids.
std::string long_text(const Json& words, int count, uint64_t state) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (i > 0) text += ' ';
    text += words[(state >> 33) % words.size()].get<std::string>();
  }
  return text;
}

std::string hash_of(const std::vector<int32_t>& ids) {
  uint64_t total = 0;
  for (const int32_t id : ids) total = (total * 31 + static_cast<uint64_t>(id) + 1) % (uint64_t{1} << 61);
  return std::to_string(total);
}

TEST(TokenizerFiles, RoundsScoresLikeTheLibraries) {
  const test::TempFolder folder;
  const Json golden = parse_json(read_file(kKinds.parent_path() / "scores.json"), "scores.json");
  ASSERT_EQ(golden["texts"].size(), 8u);
  for (const Json& one : golden["texts"]) {
    SCOPED_TRACE(one.dump());
    const Tokenizer tokenizer = Tokenizer::load(kKinds / one["tokenizer"].get<std::string>());
    const std::string text = long_text(golden["words"], one["words"].get<int>(), one["state"].get<uint64_t>());
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(ids.size(), one["ids"].get<size_t>());
    EXPECT_EQ(hash_of(ids), one["hash"].get<std::string>());
    tokenizer.save(folder / "tokenizer.json");
    const Tokenizer again = Tokenizer::load(folder / "tokenizer.json");
    EXPECT_EQ(again.hash(), tokenizer.hash());
    EXPECT_EQ(again.encode(text), ids);
  }
}

// SentencePiece decodes to the model's unk_surface; this is its default.
TEST(TokenizerFiles, DecodesUnknownCharactersLikeSentencePiece) {
  const Tokenizer tokenizer = Tokenizer::load(kKinds / "unigram.model");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the \u9F98\u9F98 of")), "the  \u2047  of");
  EXPECT_EQ(tokenizer.token_id("<unk>"), 0);
}

TEST(TokenizerFiles, DecodesToTheText) {
  const std::vector<std::string> texts = {"the council", " the  king's\npeople", "\xF0\x9F\x98\x80 zq\xC3\xA6 1234",
                                          ""};
  for (const char* name : {"bpe.model", "llama2.json", "ranks.tiktoken#cl100k", "tekken.json", "pair"}) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer = Tokenizer::load(kKinds / name);
    for (const std::string& text : texts) {
      // The model maps newlines to spaces.
      std::string expected = text;
      if (std::string_view(name) == "bpe.model") std::replace(expected.begin(), expected.end(), '\n', ' ');
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), expected);
    }
  }
}

TEST(TokenizerFiles, SpecialTokensOfAModelAreFoundOnRequest) {
  const Tokenizer tokenizer = Tokenizer::load(kKinds / "bpe.model");
  EXPECT_EQ(tokenizer.end_of_text(), tokenizer.token_id("</s>"));
  const auto plain = tokenizer.encode("a</s>"), special = tokenizer.encode("a</s>", true);
  EXPECT_GT(plain.size(), special.size());
  EXPECT_EQ(special.back(), tokenizer.end_of_text());
}

TEST(TokenizerFiles, FindsTheTokenizerOfAFolder) {
  const test::TempFolder folder;
  const auto message = [&] { return test::message_of<DataError>([&] { read_tokenizer(folder.path()); }); };
  EXPECT_NE(message().find("the folder contains no tokenizer: expected tokenizer.json"), std::string::npos)
      << message();
  fs::copy(kKinds / "unigram.model", folder / "tokenizer.model");
  EXPECT_FALSE(read_tokenizer(folder.path()).sentencepiece.empty());
  fs::copy(kKinds / "llama2.json", folder / "tokenizer.json");
  EXPECT_TRUE(read_tokenizer(folder.path()).byte_fallback);
}

// Llama's classes put a beginning-of-text token before texts unless their configuration says otherwise.
TEST(TokenizerFiles, UsesTheConfigurationBesideAModel) {
  const test::TempFolder folder;
  fs::copy(kKinds / "bpe.model", folder / "tokenizer.model");
  const auto around = [&](const char* config) {
    std::ofstream(folder / "tokenizer_config.json") << config;
    const Tokenizer tokenizer = Tokenizer::load(folder.path());
    tokenizer.save(folder / "kept/tokenizer.json");
    EXPECT_EQ(Tokenizer::load(folder / "kept/tokenizer.json").encode_whole(""), tokenizer.encode_whole(""));
    return tokenizer.encode_whole("");
  };
  fs::create_directory(folder / "kept");
  using Ids = std::vector<int32_t>;
  const Ids begin = {1}, both = {1, 2};
  EXPECT_EQ(Tokenizer::load(folder.path()).encode_whole(""), Ids());
  EXPECT_EQ(around(R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"})"), begin);
  EXPECT_EQ(around(R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "add_bos_token": false})"), Ids());
  EXPECT_EQ(around(R"({"bos_token": "<s>"})"), Ids());
  EXPECT_EQ(
      around(R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true})"),
      both);
  const auto message = test::message_of<DataError>([&] { around(R"({"add_bos_token": true})"); });
  EXPECT_NE(message.find("add_bos_token is true, but bos_token is not in the vocabulary"), std::string::npos)
      << message;
}

TEST(TokenizerFiles, ErrorsNameTheSupportedKinds) {
  const test::TempFolder folder;
  std::ofstream(folder / "my.txt") << "hello";
  const auto message = test::message_of<CorruptionError>([&] { read_tokenizer(folder / "my.txt"); });
  for (const char* piece :
       {"my.txt: not a tokenizer file that Witan reads: give a tokenizer.json", "SentencePiece", ".tiktoken", "GGUF"})
    EXPECT_NE(message.find(piece), std::string::npos) << message;
}

TEST(TokenizerFiles, ErrorsOfUnknownRanksSuggestAFix) {
  const auto message = test::message_of<DataError>([] { read_tokenizer(kKinds / "ranks.tiktoken"); });
  EXPECT_NE(message.find("a file of 380 ranks is not a known one"), std::string::npos) << message;
  EXPECT_NE(message.find("ranks.tiktoken#cl100k"), std::string::npos) << message;
  const auto unknown = test::message_of<DataError>([] { read_tokenizer(kKinds / "ranks.tiktoken#cl10k"); });
  EXPECT_NE(unknown.find("there is no split pattern \"cl10k\": give one of gpt2, cl100k"), std::string::npos)
      << unknown;
}

}  // namespace
}  // namespace witan
