// Vocabularies of GGUF files encode like the tokenizers they were made from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/formats/gguf.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/text/scanners.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kGoldenTokenizers = fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer";

GgufMetadata metadata_of(const TokenizerSpec& spec, int64_t more = 0) {
  GgufMetadata metadata("v.gguf");
  write_gguf_vocabulary(spec, static_cast<int64_t>(spec.tokens.size()) + more, metadata);
  return metadata;
}

Json texts() {
  return Json::parse(read_file(kGoldenTokenizers / "encoded.json"));
}

// The ids are from Hugging Face (tests/golden/tokenizer/make_golden.py).
TEST(GgufVocabulary, EncodesLikeHuggingFace) {
  const Json golden = texts();
  int compared = 0;
  for (const Json& expected : golden["cases"]) {
    const auto name = expected["tokenizer"].get<std::string>();
    if (name != "gpt2.json" && name != "llama3.json" && name != "o200k.json" && name != "qwen2.json") continue;
    SCOPED_TRACE(name);
    TokenizerSpec spec = read_tokenizer(kGoldenTokenizers / name);
    // GGUF files cannot represent these.
    std::erase_if(spec.added,
                  [](const AddedToken& t) { return t.lstrip || t.rstrip || t.single_word || t.normalized; });
    const Tokenizer before(spec), after(parse_gguf_vocabulary(metadata_of(spec)));
    for (size_t i = 0; i < golden["texts"].size(); ++i) {
      const auto text = golden["texts"][i].get<std::string>();
      EXPECT_EQ(after.encode(text), before.encode(text)) << text;
      EXPECT_EQ(after.encode(text, true), before.encode(text, true)) << text;
      if (before.encode(text) == Tokenizer::load(kGoldenTokenizers / name).encode(text)) {
        EXPECT_EQ(Json(after.encode(text)), expected["ids"][i]) << text;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 400);
}

TEST(GgufVocabulary, WritesThePatternOfQwen35) {
  TokenizerSpec spec = read_tokenizer(kGoldenTokenizers / "qwen2.json");
  spec.patterns = {std::string(kQwen35Pattern)};
  const GgufMetadata metadata = metadata_of(spec);
  EXPECT_EQ(metadata.text("tokenizer.ggml.pre"), "qwen35");
  EXPECT_EQ(parse_gguf_vocabulary(metadata).patterns, spec.patterns);
}

TEST(GgufVocabulary, RoundTripsSentencePieceModels) {
  const Json all = texts();
  for (const char* name : {"bpe.model", "unigram.model", "unigram_bytes.model"}) {
    SCOPED_TRACE(name);
    const TokenizerSpec spec = read_tokenizer(kGoldenTokenizers / "kinds" / name);
    if (std::string_view(name) == "bpe.model") {  // with NFKC, which llama.cpp supports only for Unigram
      EXPECT_THAT(test::message_of<DataError>([&] { metadata_of(spec); }), HasSubstr("normalises text"));
      continue;
    }
    const Tokenizer before(spec), after(parse_gguf_vocabulary(metadata_of(spec, 5)));
    EXPECT_EQ(after.vocab_size(), before.vocab_size() + 5);
    for (const Json& text : all["texts"])
      EXPECT_EQ(after.encode(text.get<std::string>()), before.encode(text.get<std::string>())) << text;
  }
}

// llama.cpp merges the pair whose token has the highest score, and the leftmost of equal ones.
TEST(GgufVocabulary, ScoresOrderMerges) {
  GgufMetadata metadata("v.gguf");
  metadata.put_text("tokenizer.ggml.model", "llama");
  metadata.put("tokenizer.ggml.tokens",
               {.type = GgufType::text,
                .array = true,
                .texts = {"<unk>", "<s>", "</s>", "▁", "a", "b", "c", "ab", "bc", "▁a", "<u>"}});
  metadata.put("tokenizer.ggml.scores",
               {.type = GgufType::f32, .array = true, .numbers = {0, 0, 0, -9, -9, -9, -9, -2, -1, -3, 0}});
  metadata.put("tokenizer.ggml.token_type",
               {.type = GgufType::i32, .array = true, .integers = {2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 4}});
  const Tokenizer tokenizer(parse_gguf_vocabulary(metadata));
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre(9, 8));
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(3, 7));
  EXPECT_EQ(tokenizer.encode("a<u>").back(), 10);
  EXPECT_NE(tokenizer.encode("</s>").front(), 2);  // special tokens only on request
  metadata.put_flag("tokenizer.ggml.add_space_prefix", false);
  EXPECT_THAT(Tokenizer(parse_gguf_vocabulary(metadata)).encode("abc"), ElementsAre(4, 8));
}

TEST(GgufVocabulary, ReadsFiles) {
  const test::TempFolder folder;
  const TokenizerSpec spec = read_tokenizer(kGoldenTokenizers / "llama3.json");
  const GgufMetadata metadata = metadata_of(spec);
  std::ofstream(folder / "v.gguf", std::ios::binary) << gguf_header(metadata, {});
  EXPECT_EQ(Tokenizer::load(folder / "v.gguf").encode("The king's 1234 words"),
            Tokenizer(spec).encode("The king's 1234 words"));
}

TEST(GgufVocabulary, ErrorsNameUnknownSettings) {
  const GgufMetadata good = metadata_of(read_tokenizer(kGoldenTokenizers / "gpt2.json"));
  const auto refusal = [&](const std::string& key, GgufValue value) {
    GgufMetadata metadata("v.gguf");
    for (const auto& [known, is] : good.values()) metadata.put(known, is);
    metadata.put(key, std::move(value));
    return test::message_of<Error>([&] { parse_gguf_vocabulary(metadata); });
  };
  const auto text = [](const char* value) { return GgufValue{.type = GgufType::text, .texts = {value}}; };
  const auto array = [](std::vector<std::string> value) {
    return GgufValue{.type = GgufType::text, .array = true, .texts = std::move(value)};
  };
  EXPECT_THAT(refusal("tokenizer.ggml.pre", text("superbpe")),
              HasSubstr("v.gguf: tokenizer.ggml.pre = superbpe: this pre-tokenizer is not supported"));
  EXPECT_THAT(refusal("tokenizer.ggml.model", text("bert")), HasSubstr("tokenizer.ggml.model = bert"));
  EXPECT_THAT(refusal("tokenizer.ggml.model", text("no_vocab")), HasSubstr("has no vocabulary"));
  EXPECT_THAT(refusal("tokenizer.ggml.merges", array({"a"})), HasSubstr("which is not a pair of tokens"));
  EXPECT_THAT(refusal("tokenizer.ggml.merges", array({"a q$$"})), HasSubstr("which tokenizer.ggml.tokens lacks"));
  EXPECT_THAT(refusal("tokenizer.ggml.tokens", array({"a", "a"})), HasSubstr("entries"));
  EXPECT_THAT(refusal("tokenizer.ggml.token_type", {.type = GgufType::i32, .array = true, .integers = {1}}),
              HasSubstr("has 1 entries"));
}

TEST(GgufVocabulary, ErrorsNameSettingsThatAFileCannotHold) {
  TokenizerSpec spec = read_tokenizer(kGoldenTokenizers / "gpt2.json");
  const auto refusal = [](const TokenizerSpec& bad) { return test::message_of<DataError>([&] { metadata_of(bad); }); };
  TokenizerSpec other = spec;
  other.patterns = {"x+"};
  EXPECT_THAT(refusal(other), HasSubstr("llama.cpp has no pre-tokenizer that splits text as this tokenizer does (x+"));
  other = spec;
  other.added.at(0).lstrip = true;
  EXPECT_THAT(refusal(other), HasSubstr("lstrip"));
  EXPECT_THAT(refusal(read_tokenizer(kGoldenTokenizers / "kinds/metaspace.json")), HasSubstr("tokenizer.model"));
  GgufMetadata metadata;
  EXPECT_THAT(test::message_of<DataError>([&] { write_gguf_vocabulary(spec, 3, metadata); }),
              HasSubstr("the model 3: they belong to different models"));
}

}  // namespace
}  // namespace witan
