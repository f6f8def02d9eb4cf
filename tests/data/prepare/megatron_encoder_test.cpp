#include "witan/data/prepare/megatron_encoder.h"

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

fs::path gpt2() {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/gpt2.json";
}

std::vector<int32_t> ids(const TextEncoder& encoder, std::string_view text) {
  std::vector<int32_t> out;
  encoder.encode(text, out);
  return out;
}

TEST(MegatronEncoderTest, TextThatSpellsASpecialTokenIsThatTokenAsInHuggingFacesLibrary) {
  const auto tokenizer = Tokenizer::load(gpt2());
  const std::string_view text = "a<|endoftext|>b";
  const TextEncoder hub = megatron_encoder({.type = "HuggingFaceTokenizer", .model = gpt2()});
  EXPECT_EQ(ids(hub, text), tokenizer.encode(text, true));
  const TextEncoder plain = megatron_encoder({.type = "", .model = gpt2()});
  EXPECT_EQ(ids(plain, text), tokenizer.encode(text));
  EXPECT_NE(hub.hash, plain.hash);
  EXPECT_FALSE(hub.end_of_text.has_value()) << "only with --append-eod";
}

TEST(MegatronEncoderTest, DocumentsEndWithTheEosOfTheFolder) {
  const TempFolder folder;
  put(folder / "t/tokenizer.json", read_file(gpt2()));
  const auto eod = [&](std::string token = {}) {
    return megatron_encoder({.type = "HuggingFaceTokenizer",
                             .model = folder / "t",
                             .append_eod = true,
                             .eod_token = std::move(token)})
        .end_of_text;
  };
  const auto tokenizer = Tokenizer::load(gpt2());
  EXPECT_EQ(eod(), tokenizer.end_of_text());
  EXPECT_EQ(eod("a"), tokenizer.token_id("a"));
  put(folder / "t/tokenizer_config.json", R"({"eos_token": {"content": "b"}})");
  EXPECT_EQ(eod(), tokenizer.token_id("b"));
  put(folder / "t/tokenizer_config.json", R"({"eos_token": "c"})");
  EXPECT_EQ(eod(), tokenizer.token_id("c"));
  EXPECT_THAT(message_of<ConfigError>([&] { eod("no such token"); }), HasSubstr("the tokenizer has no such token"));
}

TEST(MegatronEncoderTest, RefusesWithReasonAndWayOut) {
  const auto message = [](MegatronTokenizerOptions options) {
    return message_of<ConfigError>([&] { megatron_encoder(options); });
  };
  EXPECT_THAT(message({.type = "TikTokenizer"}), HasSubstr("shifted by 1000 special tokens"));
  EXPECT_THAT(message({.type = "NullTokenizer"}), HasSubstr("its rows hold ids"));
  EXPECT_THAT(message({.type = "BertWordPieceCase"}), HasSubstr("WordPiece is not read"));
  EXPECT_THAT(message({.type = "Other"}), HasSubstr("is unknown; there are HuggingFaceTokenizer, "));
  EXPECT_THAT(message({.type = "HuggingFaceTokenizer"}), HasSubstr("needs --tokenizer-model"));
  EXPECT_THAT(message({.type = "GPT2BPETokenizer"}), HasSubstr("needs --vocab-file vocab.json and --merge-file"));
  EXPECT_THAT(message({.type = "HuggingFaceTokenizer", .model = "meta/none"}), HasSubstr("names of the hub are not"));
}

}  // namespace
}  // namespace witan
