// Compares the parts of tokenizer.json with Hugging Face tokenizers: tests/golden/tokenizer/make_steps.py made the
// file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/text/normalizer.h"
#include "witan/tokenizer/text/pretokenizer.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

using Ids = std::vector<int32_t>;
using ::testing::HasSubstr;

const Json& steps() {
  static const Json all =
      parse_json(read_file(fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/steps.json"), "steps.json");
  return all;
}

Tokenizer tokenizer_with(const Json& parts) {
  Json file = steps()["tokenizer"];
  file.update(parts);
  return Tokenizer(parse_tokenizer_json(file.dump(), "t"));
}

Tokenizer written_and_read(const Tokenizer& tokenizer) {
  return Tokenizer(parse_tokenizer_json(write_tokenizer_json(tokenizer.spec()), "t"));
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  StreamingDecoder decoder(tokenizer, true);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.flush();
}

std::string refusal_of(const Json& parts) {
  try {
    tokenizer_with(parts);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Steps, DecodersApplyTheirStepsInOrder) {
  const auto lists = steps()["decoded"]["ids"].get<std::vector<Ids>>();
  int compared = 0;
  for (const Json& one : steps()["decoded"]["cases"]) {
    const Tokenizer tokenizer = tokenizer_with({{"decoder", one[0]}});
    const Tokenizer again = written_and_read(tokenizer);
    for (size_t i = 0; i < lists.size(); ++i) {
      if (one[1][i].is_null()) continue;  // the reference panics
      SCOPED_TRACE(cat(one[0].dump(), " of list ", i));
      const auto expected = one[1][i].get<std::string>();
      EXPECT_EQ(tokenizer.decode(lists[i]), expected);
      EXPECT_EQ(again.decode(lists[i]), expected);
      if (tokenizer.decodes_by_token()) {
        EXPECT_EQ(streamed(tokenizer, lists[i]), expected);
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 3500);
}

// An id without a token decodes to nothing, and the token after it still counts as the first.
TEST(Steps, IdsWithoutATokenDoNotCountAsFirst) {
  const Tokenizer tokenizer = tokenizer_with(
      {{"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}, {"split", true}}},
       {"added_tokens", {{{"id", 60'000}, {"content", "\u2581x"}, {"special", false}}}}});
  EXPECT_EQ(tokenizer.decode(Ids{60'000, 60'000}), "x x");
  EXPECT_EQ(tokenizer.decode(Ids{59'999, 60'000, 60'000}), "x x");
}

// A decoder whose text depends on adjacent tokens is streamed as well, as far as the text is known.
TEST(Steps, StreamsDecodersThatFuseTokens) {
  const Json decoder = {{"type", "Sequence"},
                        {"decoders",
                         {{{"type", "Fuse"}},
                          {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "x"}},
                          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 1}}}}};
  const Tokenizer tokenizer = tokenizer_with({{"decoder", decoder}});
  EXPECT_FALSE(tokenizer.decodes_by_token());
  const Ids ids = tokenizer.encode(" hello abo ");
  EXPECT_EQ(tokenizer.decode(ids), "hello xo");
  EXPECT_EQ(streamed(tokenizer, tokenizer.encode(" hello ")), "hello");
  Json both_ends = decoder;
  both_ends["decoders"].erase(1);
  const Tokenizer strips = tokenizer_with({{"decoder", both_ends}});
  EXPECT_FALSE(strips.decodes_by_token()) << "the last space is not known before the end";
  EXPECT_EQ(strips.decode(strips.encode(" hello ")), "hello");
}

// Also with later steps that prevent decoding tokens one by one.
TEST(Steps, ReplacesEachInvalidByte) {
  const Json decoder = {{"type", "Sequence"},
                        {"decoders",
                         {{{"type", "ByteFallback"}},
                          {{"type", "Fuse"}},
                          {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "x"}}}}};
  const Tokenizer tokenizer = tokenizer_with({{"decoder", decoder}});
  EXPECT_FALSE(tokenizer.decodes_by_token());
  const int32_t byte = steps()["tokenizer"]["model"]["vocab"]["<0xC3>"];
  EXPECT_EQ(tokenizer.decode(Ids{byte, byte}), "\uFFFD\uFFFD");
}

TEST(Steps, PostProcessorsAddTokensAroundText) {
  for (const Json& one : steps()["around"]["cases"]) {
    SCOPED_TRACE(one[0].dump());
    const Tokenizer tokenizer = tokenizer_with({{"post_processor", one[0]}});
    for (size_t i = 0; i < one[1].size(); ++i) {
      const auto text = steps()["around"]["texts"][i].get<std::string>();
      const auto expected = one[1][i].get<Ids>();
      EXPECT_EQ(tokenizer.encode_whole(text), expected);
      EXPECT_EQ(written_and_read(tokenizer).encode_whole(text), expected);
    }
  }
}

TEST(Steps, PromptsHaveTheStartTokensOfTextsOnly) {
  const Json roberta = {{"type", "RobertaProcessing"}, {"cls", {"<s>", 1}}, {"sep", {"</s>", 2}}};
  const Tokenizer tokenizer = tokenizer_with(
      {{"post_processor", roberta}, {"added_tokens", {{{"id", 1}, {"content", "<s>"}, {"special", true}}}}});
  const Ids a = tokenizer.encode("a");
  EXPECT_EQ(tokenizer.encode_prompt("a"), (Ids{1, a[0]}));
  EXPECT_EQ(tokenizer.encode_prompt(""), Ids{1});
  EXPECT_EQ(tokenizer.encode_prompt("<s>a", true), (Ids{1, a[0]})) << "not added twice";
  EXPECT_EQ(tokenizer.text_bytes(1), 0);
  EXPECT_EQ(tokenizer.text_bytes(2), 0);
  EXPECT_GT(tokenizer.text_bytes(a[0]), 0);
}

TEST(Steps, RefusesUnknownPostProcessors) {
  const auto refused = [](const Json& processor) { return refusal_of({{"post_processor", processor}}); };
  const Json roberta = {{"type", "RobertaProcessing"}, {"cls", {"<s>", 1}}, {"sep", {"</s>", 2}}};
  EXPECT_THAT(refused({{"type", "Sequence"}, {"processors", {roberta, roberta}}}), HasSubstr("several parts that add"));
  EXPECT_THAT(refused({{"type", "Other"}}), HasSubstr("post_processor of type \"Other\" is not supported"));
  EXPECT_THAT(refused({{"type", "BertProcessing"}, {"cls", {"x", 100000}}, {"sep", {"</s>", 2}}}),
              HasSubstr("adds the token 100000, which is not in the vocabulary"));
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto single = [&](const Json& pieces) {
    return refused({{"type", "TemplateProcessing"}, {"single", pieces}, {"special_tokens", Json::object()}});
  };
  EXPECT_THAT(single({text, text}), HasSubstr("more than the one text $A"));
  EXPECT_THAT(single(Json::array()), HasSubstr("without the text"));
}

TEST(Steps, FindsAddedTokensAndFirstPartsLikeHuggingFace) {
  for (const Json& one : steps()["encoded"]["cases"]) {
    const Tokenizer tokenizer = tokenizer_with(one[0]);
    for (size_t i = 0; i < one[1].size(); ++i) {
      const Json& text = steps()["encoded"]["texts"][i];
      EXPECT_EQ(tokenizer.encode(text.get<std::string>()), one[1][i].get<Ids>()) << text << " by " << one[0];
    }
  }
}

TEST(Steps, SupportsNormalizersAndPretokenizersOfBert) {
  const Json& parts = steps()["parts"];
  for (const Json& one : parts["normalizers"]) {
    const Normalizer normalizer(tokenizer_with({{"normalizer", one[0]}}).spec().normalizers);
    for (size_t i = 0; i < one[1].size(); ++i)
      EXPECT_EQ(normalizer(parts["texts"][i].get<std::string>()), one[1][i].get<std::string>())
          << one[0] << " of " << parts["texts"][i];
  }
  for (const Json& one : parts["pre_tokenizers"]) {
    const Pretokenizer splitter(tokenizer_with({{"pre_tokenizer", one[0]}}).spec().patterns);
    for (size_t i = 0; i < one[1].size(); ++i) {
      std::vector<std::string> pieces;
      splitter.split(parts["texts"][i].get<std::string>(), [&](std::string_view piece) { pieces.emplace_back(piece); });
      EXPECT_EQ(pieces, one[1][i].get<std::vector<std::string>>()) << one[0] << " of " << parts["texts"][i];
    }
  }
}

TEST(Steps, SupportsWordLevelAndWordPieceModels) {
  const auto texts = steps()["words"]["texts"].get<std::vector<std::string>>();
  for (const Json& one : steps()["words"]["cases"]) {
    const Tokenizer tokenizer(parse_tokenizer_json(one[0].dump(), "t"));
    const Tokenizer again = written_and_read(tokenizer);
    EXPECT_EQ(tokenizer.hash(), again.hash());
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto ids = one[1][i].get<Ids>();
      EXPECT_EQ(tokenizer.encode(texts[i]), ids) << texts[i];
      EXPECT_EQ(again.encode(texts[i]), ids) << texts[i];
      EXPECT_EQ(tokenizer.encode_whole(texts[i]), one[2][i].get<Ids>()) << texts[i];
      EXPECT_EQ(tokenizer.decode(ids), one[3][i].get<std::string>()) << texts[i];
      EXPECT_EQ(streamed(tokenizer, ids), one[3][i].get<std::string>()) << texts[i];
    }
  }
}

TEST(Steps, EmptyTokensHaveAnIdAndNoText) {
  Json model = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", Json::array()}};
  for (const auto& [token, score] :
       std::vector<std::pair<const char*, double>>{{"<unk>", 0}, {"a", -1}, {"", -9}, {"b", -2}})
    model["vocab"].push_back(Json::array({token, score}));
  const Tokenizer unigram = tokenizer_with({{"model", model}});
  EXPECT_EQ(unigram.encode("ab"), (Ids{1, 3}));
  EXPECT_EQ(unigram.decode(Ids{1, 2, 3}), "a  b") << "tokens separated by spaces, as without a decoder";
  EXPECT_EQ(written_and_read(unigram).hash(), unigram.hash());
  Json file = steps()["tokenizer"];
  const size_t last = file["model"]["vocab"].size();
  file["model"]["vocab"][""] = last;
  const Tokenizer bpe = tokenizer_with({{"model", file["model"]}});
  EXPECT_EQ(bpe.vocab_size(), static_cast<int64_t>(last) + 1);
  EXPECT_EQ(written_and_read(bpe).vocab_size(), bpe.vocab_size());
}

TEST(Steps, AddedTokensMayBeListedTwice) {
  const auto id = static_cast<int>(steps()["tokenizer"]["model"]["vocab"].size());
  const auto added = [&](int at, bool special, bool rstrip) {
    return Json{{"id", at}, {"content", "<x>"}, {"special", special}, {"rstrip", rstrip}, {"normalized", false}};
  };
  const Tokenizer twice = tokenizer_with({{"added_tokens", {added(id, false, false), added(id, true, true)}}});
  ASSERT_EQ(twice.spec().added.size(), 1u);
  EXPECT_EQ(twice.encode("<x> a", true).size(), 2u) << "the last one counts";
  EXPECT_EQ(twice.encode("<x>").size(), 3u) << "a special token stays special";
  EXPECT_THAT(refusal_of({{"added_tokens", {added(id, false, false), added(id + 1, false, false)}}}),
              HasSubstr("the ids"));
}

TEST(Steps, RefusesIdsFarBeyondAllTokens) {
  const auto added = [](int id) { return Json{{"added_tokens", {{{"id", id}, {"content", "<x>"}}}}}; };
  EXPECT_THAT(refusal_of(added(16'777'215)), HasSubstr("contains the id 16777215, far beyond the"));
  EXPECT_EQ(tokenizer_with(added(60'000)).vocab_size(), 60'001) << "ids may have gaps";
}

}  // namespace
}  // namespace witan
