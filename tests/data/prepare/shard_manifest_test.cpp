#include "witan/data/prepare/shard_manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "witan/base/files/file.h"
#include "witan/data/prepare/prepare.h"
#include "witan/data/prepare/text_encoder.h"
#include "witan/tokenizer/bpe_trainer.h"

namespace witan {
namespace {

Tokenizer trained_on(std::string_view text, int64_t entries = 280) {
  BpeTrainerConfig config;
  config.vocab_size = entries;
  BpeTrainer trainer(config);
  trainer.add(text);
  return trainer.train();
}

class ShardTokenizerTest : public ::testing::Test {
 protected:
  ShardTokenizerTest() {
    put(folder_ / "text.txt", "the cat and the hat and the bat sat on the mat; the end");
    prepare_dataset(find_sources({folder_ / "text.txt"}).files,
                    text_encoder(std::make_shared<const Tokenizer>(theirs_)), prefix_, {});
  }
  std::optional<TokenizerMismatch> find(const Tokenizer& given) const {
    return find_tokenizer_mismatch(prefix_, given, "given.json");
  }
  // As an older version wrote the manifest.
  void forget_vocabulary() const {
    nlohmann::json manifest = nlohmann::json::parse(read_file(manifest_));
    ASSERT_EQ(manifest.erase("vocabulary"), 1u);
    put(manifest_, manifest.dump());
  }
  void expect_said(const std::string& message, const std::vector<std::string>& parts) const {
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  }

  const TempFolder folder_;
  const fs::path prefix_ = folder_ / "shards", manifest_ = folder_ / "shards.json";
  const Tokenizer theirs_ = trained_on("the cat and the hat and the bat sat on the mat; the end");
  const Tokenizer other_ = trained_on("zwei Wagen und zwei Waagen wogen");
};

TEST_F(ShardTokenizerTest, TheSameTokenizerIsNoMismatch) {
  EXPECT_FALSE(find(theirs_));
  EXPECT_FALSE(find_tokenizer_mismatch(prefix_.string() + ".bin", theirs_, "given.json"));
  EXPECT_TRUE(find_tokenizer_mismatch(prefix_.string() + ".idx", other_, "given.json"));
}

TEST_F(ShardTokenizerTest, AnotherIsCertainByTheManifestAlone) {
  const auto found = find(other_);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->certain);
  EXPECT_EQ(found->own, "");
  expect_said(found->message, {prefix_.string(), "given.json", theirs_.hash(), other_.hash(), "stretches of 64 ids"});
}

TEST_F(ShardTokenizerTest, TheTokenizerBesideTheShardsSaysWhichTokenDiffers) {
  const std::string beside = prefix_.string() + ".tokenizer.json";
  theirs_.save(beside);
  forget_vocabulary();
  const auto found = find(other_);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->certain);
  EXPECT_EQ(found->own, beside);
  expect_said(found->message, {prefix_.string(), beside, "given.json", "token 256 is \""});
  // What lies there is believed only if it is the tokenizer that the manifest names.
  other_.save(beside);
  EXPECT_FALSE(find(other_)->certain);
}

TEST_F(ShardTokenizerTest, WhatMayBeHarmlessIsNotCertain) {
  TokenizerSpec spec = theirs_.spec();
  spec.ignore_merges = !spec.ignore_merges;
  const Tokenizer divides(spec);
  for (const bool beside : {false, true}) {
    if (beside) theirs_.save(prefix_.string() + ".tokenizer.json");
    const auto found = find(divides);
    ASSERT_TRUE(found);
    EXPECT_FALSE(found->certain) << found->message;
  }
  forget_vocabulary();
  std::filesystem::remove(prefix_.string() + ".tokenizer.json");
  const auto unknown = find(other_);
  ASSERT_TRUE(unknown);
  EXPECT_FALSE(unknown->certain);
  expect_said(unknown->message, {"is not known"});
}

TEST_F(ShardTokenizerTest, ShardsOfUnknownTokenizersAreAccepted) {
  const std::string manifest = read_file(manifest_);
  for (const std::string bad : {"", "no JSON", "{}", R"({"format": "another"})"}) {
    put(manifest_, bad);
    EXPECT_FALSE(find(other_)) << bad;
  }
  std::filesystem::remove(manifest_);
  EXPECT_FALSE(find(other_));
  // Nor does the manifest of shards that another program has replaced count.
  put(manifest_, manifest);
  put(prefix_.string() + ".bin", read_file(prefix_.string() + ".bin") + "ab");
  EXPECT_FALSE(find(other_));
}

}  // namespace
}  // namespace witan
