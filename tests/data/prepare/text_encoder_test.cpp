#include "witan/data/prepare/text_encoder.h"

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/prepare/prepare.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan {
namespace {

std::shared_ptr<const Tokenizer> small_tokenizer(std::string_view text) {
  BpeTrainerConfig config;
  config.vocab_size = 300;
  BpeTrainer trainer(config);
  trainer.add(text);
  return std::make_shared<const Tokenizer>(trainer.train());
}

TEST(TextEncoder, RoundTripsTextThroughShards) {
  const std::string text = "the cat and the hat and the café sat on the mat; the end\n";
  const auto tokenizer = small_tokenizer(text);
  const TextEncoder encoder = text_encoder(tokenizer);
  ASSERT_TRUE(encoder.end_of_text.has_value());
  EXPECT_EQ(encoder.vocab_size, tokenizer->vocab_size());
  EXPECT_EQ(encoder.hash, tokenizer->hash());

  const TempFolder folder;
  put(folder / "text/a.txt", text);
  put(folder / "text/b.txt", "another hat");
  const PreparedDataset prepared =
      prepare_dataset(find_sources({folder / "text"}).files, encoder, folder / "shards", {});
  const auto shards = open_tokens(prepared.prefix);
  ASSERT_EQ(shards->documents(), 2);
  auto tokens = read_document(*shards, 0);
  EXPECT_LT(tokens.size(), text.size());
  EXPECT_EQ(tokens.back(), *encoder.end_of_text);
  tokens.pop_back();
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_EQ(prepared.train.bytes + prepared.held_out.bytes, static_cast<int64_t>(text.size() + 11));
}

// The end of text, which the caller adds, is left out; tokens that the tokenizer adds around texts are not part of
// them.
TEST(TextEncoder, TextsAreBetweenTheTokenizersSpecialTokens) {
  TokenizerSpec spec = small_tokenizer("aaaa aaaa")->spec();
  const auto end = static_cast<int32_t>(spec.tokens.size()) - 1, a = int32_t{64};
  const std::string plain = text_encoder(std::make_shared<const Tokenizer>(spec)).hash;
  spec.before = {5, 6};
  spec.after = {7, end};
  const TextEncoder encoder = text_encoder(std::make_shared<const Tokenizer>(spec));
  std::vector<int32_t> tokens;
  encoder.encode("a", tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{5, 6, a, 7}));
  for (const int32_t id : {5, 6, 7, static_cast<int>(end)}) EXPECT_EQ(encoder.token_bytes(id), 0) << id;
  EXPECT_EQ(encoder.token_bytes(a), 1);
  EXPECT_NE(encoder.hash, plain) << "shards are recreated";
  EXPECT_TRUE(encoder.hash.starts_with(plain)) << "but with the same tokenizer";
  tokens.clear();
  encoder.encode_chat("a", {}, tokens);
  EXPECT_EQ(tokens, std::vector<int32_t>{a}) << "chat templates write the beginning of a text themselves";
}

TEST(TextEncoder, TokensCountTheirBytesAndTheEndOfTextNone) {
  const TextEncoder encoder = text_encoder(small_tokenizer("aaaa aaaa"));
  EXPECT_EQ(encoder.token_bytes(*encoder.end_of_text), 0);
  for (const std::string text : {"aaaa", "naïve text", "\x01\x02"}) {
    std::vector<int32_t> tokens;
    encoder.encode(text, tokens);
    int64_t bytes = 0;
    for (const int32_t token : tokens) bytes += encoder.token_bytes(token);
    EXPECT_EQ(bytes, static_cast<int64_t>(text.size()));
  }
}

using ::testing::HasSubstr;

fs::path gpt2() {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/gpt2.json";
}

std::vector<int32_t> ids(const TextEncoder& encoder, std::string_view text) {
  std::vector<int32_t> out;
  encoder.encode(text, out);
  return out;
}

TEST(MegatronEncoderTest, SpecialTokensInTextAreParsedLikeHuggingFace) {
  const auto tokenizer = Tokenizer::load(gpt2());
  const std::string_view text = "a<|endoftext|>b";
  const TextEncoder hub = megatron_encoder({.type = "HuggingFaceTokenizer", .model = gpt2()});
  EXPECT_EQ(ids(hub, text), tokenizer.encode(text, true));
  const TextEncoder plain = megatron_encoder({.type = "", .model = gpt2()});
  EXPECT_EQ(ids(plain, text), tokenizer.encode(text));
  EXPECT_NE(hub.hash, plain.hash);
  EXPECT_FALSE(hub.end_of_text.has_value()) << "only with --append-eod";
}

TEST(MegatronEncoderTest, DocumentsEndWithTheFoldersEosToken) {
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

TEST(MegatronEncoderTest, RefusalsNameReasonAndFix) {
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
