#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/text/byte_alphabet.h"
#include "witan/tokenizer/text/scanners.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

// The smallest complete file: 256 bytes, the token "ab" with its merge, and one special token.
Json small_file() {
  Json vocab;
  for (const uint8_t byte : byte_alphabet_order())
    vocab[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = vocab.size();
  vocab["ab"] = 256;
  return {{"added_tokens", {{{"id", 257}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}}};
}

Json changed(const char* pointer, const Json& value) {
  Json file = small_file();
  file[Json::json_pointer(pointer)] = value;
  return file;
}

TokenizerSpec parse(const Json& file) {
  return parse_tokenizer_json(file.dump(), "t.json");
}

template <class E>
std::string message(const Json& file) {
  return test::message_of<E>([&] { parse(file); });
}

void expect_unsupported(const char* pointer, const Json& value, const std::string& what) {
  const std::string got = message<DataError>(changed(pointer, value));
  EXPECT_EQ(got.substr(0, got.find(" is not supported; Witan reads")), "t.json: " + what);
}

void expect_corrupt(const char* pointer, const Json& value, const std::string& what) {
  EXPECT_EQ(message<CorruptionError>(changed(pointer, value)), "t.json: " + what);
}

TEST(TokenizerJson, ReadsTheSmallestFile) {
  const TokenizerSpec spec = parse(small_file());
  EXPECT_EQ(spec.tokens.size(), 258u);
  EXPECT_EQ(spec.tokens[256], "ab");
  EXPECT_EQ(spec.merges, (std::vector<Merge>{{64, 65, 256}}));
  EXPECT_EQ(spec.patterns, std::vector<SplitStep>{std::string(kGpt2Pattern)});
  ASSERT_EQ(spec.added.size(), 1u);
  EXPECT_FALSE(spec.added[0].in_model);
  EXPECT_FALSE(spec.ignore_merges || !spec.normalizers.empty() || spec.prefix_space);
}

TEST(TokenizerJson, ReadsEveryPretokenizer) {
  const auto patterns = [](const Json& pretokenizer) {
    return parse(changed("/pre_tokenizer", pretokenizer)).patterns;
  };
  const auto split = [](std::string_view regex, const char* behavior, bool invert) -> Json {
    return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}};
  };
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto sequence = [&](Json steps) -> Json {
    steps.push_back(bytes);
    return {{"type", "Sequence"}, {"pretokenizers", steps}};
  };
  using Patterns = std::vector<SplitStep>;
  EXPECT_EQ(patterns(bytes), Patterns{});
  EXPECT_EQ(patterns(sequence({split(kLlama3Pattern, "Isolated", false)})), Patterns{std::string(kLlama3Pattern)});
  EXPECT_EQ(patterns(sequence({split(kQwen2Pattern, "Removed", true)})), Patterns{std::string(kQwen2Pattern)});
  EXPECT_EQ(patterns(sequence({{{"type", "Digits"}, {"individual_digits", true}}, split("x", "Isolated", false)})),
            (Patterns{std::string(kDigitPattern), "x"}));
  EXPECT_EQ(patterns(sequence({Json{{"type", "Digits"}}})), Patterns{std::string(kDigitRunPattern)});
  expect_unsupported("/pre_tokenizer", sequence({split("x", "Shuffled", true)}),
                     "pre_tokenizer.pretokenizers[0].behavior \"Shuffled\"");
}

TEST(TokenizerJson, RoundTrips) {
  Json file = small_file();
  file["added_tokens"].push_back({{"id", 300}, {"content", "日\"\n"}, {"special", false}, {"normalized", true}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  file["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"a", 64}}, {"sep", {"b", 65}}};
  file["model"]["ignore_merges"] = true;
  const TokenizerSpec first = parse(file);
  const TokenizerSpec second = parse_tokenizer_json(write_tokenizer_json(first), "written");
  EXPECT_EQ(Tokenizer(first).hash(), Tokenizer(second).hash());
  EXPECT_EQ(second.post_processor, file["post_processor"].dump());
  EXPECT_EQ(second.tokens[300], "日\"\n");
  EXPECT_TRUE(second.tokens[299].empty());
}

TEST(TokenizerJson, ReadsMergesAsPairsAndRepeatedMerges) {
  Json file = changed("/model/merges", Json::array({Json::array({"a", "b"})}));
  EXPECT_EQ(parse(file).merges, parse(small_file()).merges);
  file["model"]["vocab"]["abb"] = 258;
  file["model"]["vocab"]["bb"] = 259;
  file["model"]["merges"] = {"a b", "b b", "a b"};  // the last "a b" counts: bb merges first
  const Tokenizer tokenizer(parse(file));
  EXPECT_EQ(tokenizer.encode("abb"), (std::vector<int32_t>{64, 259}));
}

TEST(TokenizerJson, ErrorsNameUnsupportedSettings) {
  expect_unsupported("/model/type", "WordPiece", "model of type \"WordPiece\" after ByteLevel");
  expect_unsupported("/model/type", "Other", "model of type \"Other\"");
  expect_unsupported("/model/dropout", 0.1, "model.dropout (random segmentation)");
  expect_unsupported("/model/byte_fallback", true, "model.byte_fallback true (SentencePiece)");
  expect_unsupported("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix \"</w>\"");
  expect_unsupported("/model/vocab/▁the", 300,
                     "model.vocab with the token \"▁the\", which is neither in the byte alphabet nor an added token,");
  expect_unsupported("/normalizer", {{"type", "ByteLevel"}}, "normalizer of type \"ByteLevel\"");
  expect_unsupported("/pre_tokenizer", nullptr, "pre_tokenizer null");
  expect_unsupported("/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer that does not end with ByteLevel");
  expect_unsupported("/pre_tokenizer",
                     {{"type", "Sequence"}, {"pretokenizers", {{{"type", "UnicodeScripts"}}, {{"type", "ByteLevel"}}}}},
                     "pre_tokenizer.pretokenizers[0] of type \"UnicodeScripts\"");
  expect_unsupported("/decoder", {{"type", "Metaspace"}}, "decoder other than ByteLevel for a vocabulary of bytes");
}

// A character vocabulary with byte fallback.
Json character_file() {
  Json vocab = {{"<unk>", 0}, {"\u2581", 1}, {"a", 2}, {"b", 3}, {"\u2581a", 4}, {"<0xC3>", 5}, {"<0xA9>", 6}};
  return {
      {"added_tokens", {{{"id", 0}, {"content", "<unk>"}, {"special", true}}}},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
      {"pre_tokenizer", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", {{{"type", "Metaspace"}, {"replacement", "\u2581"}}, {{"type", "ByteFallback"}}}}}},
      {"model",
       {{"type", "BPE"}, {"unk_token", "<unk>"}, {"byte_fallback", true}, {"vocab", vocab}, {"merges", {"\u2581 a"}}}}};
}

Json unigram_file() {
  Json file = character_file();
  file["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", Json::array()}};
  for (const auto& [token, score] :
       std::vector<std::pair<const char*, double>>{{"<unk>", 0}, {"a", -1.5}, {"ab", -2}, {"b", -1}})
    file["model"]["vocab"].push_back(Json::array({token, score}));
  return file;
}

TEST(TokenizerJson, CharactersFallBackToBytes) {
  Json file = character_file();
  const Tokenizer tokenizer(parse(file));
  EXPECT_EQ(tokenizer.encode("b a\u00E9 x"), (std::vector<int32_t>{3, 4, 5, 6, 1, 0}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" a\u00E9")), "a\u00E9");  // the decoder strips the first space
  EXPECT_EQ(tokenizer.token_bytes(4), " a");
  EXPECT_EQ(tokenizer.token_bytes(5), "\xC3");
  EXPECT_EQ(tokenizer.encode("xx"), (std::vector<int32_t>{0, 0}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(Tokenizer(parse(file)).encode("xxa"), (std::vector<int32_t>{0, 2}));
  file["model"]["unk_token"] = nullptr;
  EXPECT_EQ(Tokenizer(parse(file)).encode("xxa"), std::vector<int32_t>{2});
}

TEST(TokenizerJson, UnigramUsesTheBestScore) {
  const Tokenizer tokenizer(parse(unigram_file()));
  EXPECT_EQ(tokenizer.encode("abba"), (std::vector<int32_t>{2, 3, 1}));
  EXPECT_EQ(tokenizer.encode("a\u4E2D\u6587b"),
            (std::vector<int32_t>{1, 0, 3}));  // adjacent unknown characters form one unknown token
}

TEST(TokenizerJson, ErrorsNameTheFaultOfVocabulariesOfCharacters) {
  const auto broken = [](Json file, const char* pointer, const Json& value) {
    file[Json::json_pointer(pointer)] = value;
    return message<Error>(file);
  };
  const Json file = character_file();
  EXPECT_EQ(broken(file, "/model/unk_token", "<x>"), "t.json: model.unk_token \"<x>\" is not in the vocabulary");
  EXPECT_EQ(broken(file, "/normalizer/pattern/String", ""), "t.json: normalizer.pattern is empty");
  EXPECT_EQ(broken(file, "/decoder/decoders/0/replacement", ""),
            "t.json: decoder.decoders[0].replacement must be one character");
  EXPECT_EQ(broken(file, "/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "?"}}),
            "t.json: normalizer.precompiled_charsmap is not base64");
  EXPECT_NE(broken(file, "/decoder", {{"type", "CTC"}}).find("decoder of type \"CTC\" is not supported"),
            std::string::npos);
  EXPECT_EQ(broken(file, "/model/witan", {{"merge_ranks", "x"}}), "t.json: model.witan.merge_ranks must be \"result\"");
  const Json unigram = unigram_file();
  EXPECT_EQ(broken(unigram, "/model/unk_id", 4), "t.json: model.unk_id is not in the vocabulary");
  EXPECT_EQ(broken(unigram, "/model/vocab/1", "a"), "t.json: model.vocab [1] must be a string and a number");
  EXPECT_EQ(broken(unigram, "/model/vocab", Json::object()), "t.json: model.vocab must be an array");
}

// Each step doubles the text: 64 of them would exhaust any memory.
TEST(TokenizerJson, LimitsTextAddedByNormalizers) {
  Json file = character_file();
  const Json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json(64, twice)}};
  const Tokenizer tokenizer(parse(file));
  const auto text = test::message_of<DataError>([&] { tokenizer.encode("aaaa"); });
  EXPECT_NE(text.find("the normalizer turns a text of 4 bytes into 131072 bytes, more than 16 times as many"),
            std::string::npos)
      << text;
  file["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(65, 'a')}};
  EXPECT_NE(test::message_of<DataError>([&] { Tokenizer(parse(file)); }).find("the limit is 64"), std::string::npos);
}

TEST(TokenizerJson, ErrorsNameTheDamage) {
  EXPECT_EQ(message<CorruptionError>(Json::array()),
            "t.json: not a tokenizer.json: it must be an object with a \"model\"");
  expect_corrupt("/model", 3, "model must be an object");
  expect_corrupt("/model/vocab", "x", "model.vocab must be an object");
  expect_corrupt("/model/vocab/zz", -1, "model.vocab contains an id that is not an integer from 0 to 16777215");
  expect_corrupt("/model/vocab/zz", 16777216, "model.vocab contains an id that is not an integer from 0 to 16777215");
  expect_corrupt("/model/vocab/zz", 1.5, "model.vocab contains an id that is not an integer from 0 to 16777215");
  expect_corrupt("/model/vocab/zz", 5, "model.vocab gives the id 5 to two tokens");
  expect_corrupt("/model/merges", nullptr, "model.merges must be an array");
  expect_corrupt("/model/merges/0", "ab", "model.merges[0] must be two tokens with one space between them, not \"ab\"");
  expect_corrupt("/model/merges/0", {"a"}, "model.merges[0] must be a pair");
  expect_corrupt("/model/merges/0", {"a", 1}, "model.merges[0][1] must be a string");
  expect_corrupt("/model/merges/0", "a zz", "model.merges[0] needs the token \"zz\", which is not in the vocabulary");
  expect_corrupt("/model/merges/0", "b a", "model.merges[0] needs the token \"ba\", which is not in the vocabulary");
  expect_corrupt("/model/ignore_merges", 1, "model.ignore_merges must be true or false");
  expect_corrupt("/added_tokens/0/id", 256, "added_tokens[0] gives the id 256 to two tokens");
  expect_corrupt("/added_tokens/0/content", "ab", "added_tokens[0].id is 257, but model.vocab says 256");
  Json twice = small_file()["added_tokens"][0];
  twice["id"] = 258;
  expect_corrupt("/added_tokens/1", twice, "added_tokens[1].id gives \"<|endoftext|>\" the ids 257 and 258");
}

TEST(TokenizerJson, EveryTruncationIsCorrupt) {
  const std::string text = write_tokenizer_json(parse(small_file()));
  for (size_t length = 0; length + 2 < text.size(); ++length)
    ASSERT_THROW(parse_tokenizer_json(std::string_view(text).substr(0, length), "cut"), CorruptionError) << length;
}

TEST(TokenizerJson, DamagedBytesAreRefusedOrHarmless) {
  const std::string text = write_tokenizer_json(parse(small_file()));
  std::mt19937 random(2);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = text;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      const Tokenizer tokenizer(parse_tokenizer_json(damaged, "damaged"));
      tokenizer.encode("the text about ab");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(TokenizerJson, ErrorsNameTheFile) {
  const test::TempFolder folder;
  const auto message_of_load = [&](std::string_view text) -> std::string {
    write_file_atomically(folder / "tokenizer.json", text);
    return test::message_of<Error>([&] { Tokenizer::load(folder / "tokenizer.json"); });
  };
  const std::string name = (folder / "tokenizer.json").string();
  EXPECT_EQ(message_of_load("").rfind(name + ": byte ", 0), 0u);
  EXPECT_EQ(message_of_load("{\"model\": 1, \"model\": 2}").rfind(name + ": ", 0), 0u);
  EXPECT_EQ(message_of_load(std::string(100, '[')).rfind(name + ": nested deeper", 0), 0u);
  Json file = small_file();
  file["model"]["vocab"].erase("!");
  EXPECT_EQ(message_of_load(file.dump()).rfind(name + ": the vocabulary has no token for the byte 33", 0), 0u);
  file = changed("/pre_tokenizer", {{"type", "Sequence"},
                                    {"pretokenizers",
                                     {{{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}},
                                      {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}});
  EXPECT_EQ(message_of_load(file.dump()).rfind(name + ": the tokenizer's pattern", 0), 0u);
  EXPECT_THROW(Tokenizer::load(folder / "missing.json"), IoError);
}

}  // namespace
}  // namespace witan
