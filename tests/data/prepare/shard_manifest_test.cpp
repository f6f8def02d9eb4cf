#include "witan/data/prepare/shard_manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/data/prepare/prepare.h"
#include "witan/data/prepare/text_encoder.h"
#include "witan/data/text/quarantine.h"
#include "witan/tokenizer/training/bpe_trainer.h"

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
  // The manifest as an older version wrote it.
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

TEST_F(ShardTokenizerTest, TheSameTokenizerMatches) {
  EXPECT_FALSE(find(theirs_));
  EXPECT_FALSE(find_tokenizer_mismatch(prefix_.string() + ".bin", theirs_, "given.json"));
  EXPECT_TRUE(find_tokenizer_mismatch(prefix_.string() + ".idx", other_, "given.json"));
}

TEST_F(ShardTokenizerTest, ADifferentTokenizerIsDetectedFromTheManifest) {
  const auto found = find(other_);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->certain);
  EXPECT_EQ(found->own, "");
  expect_said(found->message, {prefix_.string(), "given.json", theirs_.hash(), other_.hash(), "stretches of 64 ids"});
}

TEST_F(ShardTokenizerTest, ErrorsNameTheDifferingTokenFromTheStoredTokenizer) {
  const std::string beside = prefix_.string() + ".tokenizer.json";
  theirs_.save(beside);
  forget_vocabulary();
  const auto found = find(other_);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->certain);
  EXPECT_EQ(found->own, beside);
  expect_said(found->message, {prefix_.string(), beside, "given.json", "token 256 is \""});
  // A tokenizer file is trusted only if it is the one that the manifest names.
  other_.save(beside);
  EXPECT_FALSE(find(other_)->certain);
}

TEST_F(ShardTokenizerTest, PossiblyHarmlessDifferencesAreUncertain) {
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

TEST_F(ShardTokenizerTest, AcceptsShardsOfUnknownTokenizers) {
  const std::string manifest = read_file(manifest_);
  for (const std::string bad : {"", "no JSON", "{}", R"({"format": "another"})"}) {
    put(manifest_, bad);
    EXPECT_FALSE(find(other_)) << bad;
  }
  std::filesystem::remove(manifest_);
  EXPECT_FALSE(find(other_));
  // The manifest does not count either if another program has replaced the shards.
  put(manifest_, manifest);
  put(prefix_.string() + ".bin", read_file(prefix_.string() + ".bin") + "ab");
  EXPECT_FALSE(find(other_));
}

using ::testing::HasSubstr;

TextEncoder letters_encoder() {
  return {[](std::string_view text, std::vector<int32_t>& out) {
            for (const char c : text) out.push_back(static_cast<unsigned char>(c));
          },
          [](int32_t) { return 1; },
          256,
          {},
          "letters"};
}

class OwnShards : public ::testing::Test {
 protected:
  OwnShards() {
    put(folder_ / "a.txt", "some text");
    put(folder_ / "b.txt", "other text");
  }
  std::vector<Source> found(const std::string& name) const { return find_sources({folder_ / name}).files; }
  void prepare(const std::string& name) const { prepare_dataset(found(name), letters_encoder(), folder_ / "out", {}); }
  std::string refusal(const std::string& name) const {
    return message_of<ConfigError>([&] { check_own_shards(folder_ / "out", found(name), "--output-prefix"); });
  }
  void expect_taken(const std::string& name) const {
    EXPECT_NO_THROW(check_own_shards(folder_ / "out", found(name), "--output-prefix"));
  }

  TempFolder folder_;
};

TEST_F(OwnShards, AreCreatedInEmptyPlaces) {
  expect_taken("a.txt");
  EXPECT_FALSE(fs::exists(folder_ / "out.partial.lock"));
}

TEST_F(OwnShards, KeepFilesOfOtherPrograms) {
  for (const char* suffix : {".bin", ".idx", ".json", ".loss.bin", ".loss.idx"}) {
    const std::string file = std::string("out") + suffix;
    put(folder_ / file, "{\"format\": \"mine\"}");
    EXPECT_THAT(refusal("a.txt"), HasSubstr(file + " exists already, and this command would make it: remove it, or "
                                                   "give another --output-prefix"));
    fs::remove(folder_ / file);
  }
}

TEST_F(OwnShards, ReplaceOnlyListsOfUnusableRows) {
  const std::string list = folder_ / "out.quarantine.jsonl";
  put(list, "{\"source\": \"mine\"}\n");
  EXPECT_THAT(message_of<UsageError>([&] { check_own_shards(folder_ / "out", found("a.txt"), "--output-prefix"); }),
              HasSubstr(list + " is there already and is no list of this command"));
  {
    Quarantine earlier(list);
    earlier.add("a.txt", 1, "no JSON", "{");
    earlier.close();
  }
  expect_taken("a.txt");
}

TEST_F(OwnShards, NeverLockThroughALink) {
  put(folder_ / "elsewhere", "mine");
  fs::create_symlink("elsewhere", folder_ / "out.partial.lock");
  EXPECT_THAT(message_of<IoError>([&] { prepare("a.txt"); }), HasSubstr("out.partial.lock: it is a link"));
  EXPECT_EQ(read_file(folder_ / "elsewhere"), "mine");
}

TEST_F(OwnShards, AreRecreatedFromTheSameFiles) {
  prepare("a.txt");
  expect_taken("a.txt");
  put(folder_ / "a.txt", "text that has changed");
  expect_taken("a.txt");
}

TEST_F(OwnShards, KeepShardsOfOtherText) {
  prepare("a.txt");
  EXPECT_THAT(refusal("b.txt"), HasSubstr("out.bin has the tokens of other text, of " + (folder_ / "a.txt").string()));
  EXPECT_THAT(refusal("b.txt"), HasSubstr("give another --output-prefix"));
}

// The manifest records file sizes, so a file that replaced one is not Witan's.
TEST_F(OwnShards, KeepReplacedPairs) {
  prepare("a.txt");
  put(folder_ / "out.bin", "the tokens of another program");
  EXPECT_THAT(refusal("a.txt"), HasSubstr("out.bin exists already"));
  fs::remove(folder_ / "out.bin");
  expect_taken("a.txt");
}

TEST_F(OwnShards, ContinueUnfinishedWork) {
  for (const char* suffix : {".partial.json", ".partial.lock"}) {
    put(folder_ / "out.bin", "renamed, and then the process was killed");
    put(folder_ / (std::string("out") + suffix), "");
    expect_taken("a.txt");
    fs::remove(folder_ / (std::string("out") + suffix));
    EXPECT_NE(refusal("a.txt"), "");
  }
}

TEST_F(OwnShards, NeverOverwriteTheirInput) {
  put(folder_ / "out.json", "{\"text\": \"a row\"}\n");
  EXPECT_THAT(refusal("out.json"), HasSubstr("out.json is read, and this command would write its shards there"));
  put(folder_ / "out.quarantine.jsonl", "{\"text\": \"a row\"}\n");
  EXPECT_THAT(refusal("out.quarantine.jsonl"), HasSubstr("out.quarantine.jsonl is read"));
}

// A call may also end between publishing the shards and their manifest.
TEST_F(OwnShards, RecreatePairsWithoutAManifest) {
  fs::create_directories(folder_ / "out.json/in.the.way");
  EXPECT_ANY_THROW(prepare("a.txt"));
  fs::remove_all(folder_ / "out.json");
  EXPECT_TRUE(fs::exists(folder_ / "out.idx"));
  expect_taken("a.txt");
  prepare("a.txt");
  EXPECT_FALSE(fs::exists(folder_ / "out.partial.json"));
  EXPECT_EQ(fs::file_size(folder_ / "out.bin"), 2 * std::string("some text").size());
}

}  // namespace
}  // namespace witan
