#include "witan/train/run/run_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "support/temp_folder.h"
#include "train/run/run_support.h"
#include "witan/base/file.h"
#include "witan/data/bigram.h"
#include "witan/data/indexed_dataset.h"
#include "witan/tokenizer/bpe_trainer.h"

namespace witan {
namespace {

// Token shards whose tokens are bytes.
class RunDataTest : public ::testing::Test {
 protected:
  RunDataTest() : config_(testing::small_config()) {
    BpeTrainerConfig bytes;
    bytes.vocab_size = 257;  // the bytes and an end of text
    tokenizer_ = std::make_shared<Tokenizer>(BpeTrainer(bytes).train());
    config_.data.seq_length = 8;
    config_.data.held_out_fraction = 0.3;
    config_.data.eod_mask_loss = true;
    config_.train.micro_batch_size = 3;
    config_.train.global_batch_size = 7;
    config_.train.eval_iters = 1;
  }
  RunData open(const std::vector<std::string>& documents) {
    IndexedWriter writer(folder_ / "tokens", tokenizer_->vocab_size());
    for (const std::string& text : documents) {
      auto ids = tokenizer_->encode(text);
      ids.push_back(*tokenizer_->end_of_text());
      writer.add(ids);
    }
    writer.finish();
    return open_run_data(config_, tokenizer_, folder_ / "tokens");
  }
  // Ten times a, ten times b …
  RunData open_letters() {
    std::vector<std::string> documents;
    for (char letter = 'a'; letter <= 'z'; ++letter) documents.emplace_back(10, letter);
    return open(documents);
  }

  test::TempFolder folder_;
  RunConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(RunDataTest, NoTokenIsTrainedOnAndHeldOut) {
  const RunData data = open_letters();
  const auto letters = [&](const Samples& samples) {
    std::set<int32_t> seen;
    std::vector<int32_t> tokens(9);
    for (int64_t i = 0; i < samples.per_epoch(); ++i) {
      samples.read(i, tokens);
      seen.insert(tokens.begin(), tokens.end());
    }
    seen.erase(*tokenizer_->end_of_text());
    return seen;
  };
  const auto trained = letters(*data.train), held_out = letters(*data.held_out);
  EXPECT_GT(trained.size(), 10u);
  EXPECT_GT(held_out.size(), 5u);
  for (const int32_t letter : held_out) EXPECT_FALSE(trained.contains(letter)) << tokenizer_->token_bytes(letter);
}

// Token files of llm.c and modded-nanogpt, whose documents begin with the end-of-text token that here ends them.
TEST_F(RunDataTest, ATokenFileIsReadAsShardsAre) {
  const auto bytes_of = [](const auto& numbers) {
    return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0]));
  };
  std::vector<int32_t> ids;
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    ids.push_back(*tokenizer_->end_of_text());
    for (const int32_t id : tokenizer_->encode(std::string(10, letter))) ids.push_back(id);
  }
  const auto header = [&](int32_t magic, int32_t version) {
    std::vector<int32_t> words(256);
    words[0] = magic, words[1] = version, words[2] = static_cast<int32_t>(ids.size());
    return bytes_of(words);
  };
  write_file_atomically(folder_ / "gpt2.bin",
                        header(20240520, 1) + bytes_of(std::vector<uint16_t>(ids.begin(), ids.end())));
  write_file_atomically(folder_ / "llama3.bin",
                        header(20240801, 7) + bytes_of(std::vector<uint32_t>(ids.begin(), ids.end())));
  const auto trained_on = [&](const char* name) {
    const RunData data = open_run_data(config_, tokenizer_, folder_ / name);
    EXPECT_FALSE(data.fingerprint.empty());
    EXPECT_GT(data.held_out->per_epoch(), 1);
    std::multiset<std::vector<int32_t>> samples;
    std::vector<int32_t> tokens(9);
    for (int64_t i = 0; i < data.train->per_epoch(); ++i) {
      data.train->read(i, tokens);
      samples.insert(tokens);
    }
    return samples;
  };
  const auto narrow = trained_on("gpt2.bin");
  EXPECT_GT(narrow.size(), 10U);
  EXPECT_EQ(narrow, trained_on("llama3.bin"));
}

// Seven samples in batches of three: the last batches are filled up, and what fills them does not count.
TEST_F(RunDataTest, EveryLookCountsTheSameTargetsOnceUnderAnyLayout) {
  const RunData data = open_letters();
  ASSERT_GE(data.held_out->per_epoch(), 7);
  std::multiset<std::pair<int32_t, int32_t>> expected;  // token, target
  std::vector<int32_t> tokens(9);
  for (int64_t i = 0; i < 7; ++i) {
    data.held_out->read(i, tokens);
    for (size_t at = 0; at < 8; ++at)
      if (tokens[at] != *tokenizer_->end_of_text()) expected.emplace(tokens[at], tokens[at + 1]);
  }
  double bytes = 0;
  for (const auto& [token, target] : expected) bytes += target != *tokenizer_->end_of_text();
  ASSERT_LT(bytes, static_cast<double>(expected.size()));

  for (const int ranks : {1, 2, 3, 4}) {
    const auto batches_of = [&](int rank) {
      return held_out_batches(data, evaluation_samples(data, config_.train), config_.train.micro_batch_size, rank,
                              ranks);
    };
    std::multiset<std::pair<int32_t, int32_t>> counted;
    double counted_bytes = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto batches = batches_of(rank);
      EXPECT_EQ(batches.size(), batches_of(0).size());
      counted_bytes += target_bytes(batches, *tokenizer_);
      for (const Batch& batch : batches) {
        int64_t here = 0;
        for (size_t i = 0; i < batch.targets.size(); ++i)
          if (batch.loss_mask[i] > 0) counted.emplace(batch.tokens[i], batch.targets[i]), ++here;
        EXPECT_EQ(batch.loss_tokens, here);
      }
    }
    EXPECT_EQ(counted, expected) << ranks << " ranks";
    EXPECT_EQ(counted_bytes, bytes) << ranks << " ranks";
  }
}

TEST_F(RunDataTest, TheFingerprintIsThatOfTheTokensAndNotOfTheirNumberAlone) {
  const std::string first = open({"one two three four", "five six seven"}).fingerprint;
  EXPECT_EQ(open({"one two three four", "five six seven"}).fingerprint, first);
  EXPECT_NE(open({"one two three four", "five six Seven"}).fingerprint, first);
  EXPECT_NE(open({"one two three fou", "rfive six seven"}).fingerprint, first);
}

TEST_F(RunDataTest, TheBigramModelKnowsTheTrainingTextAlone) {
  const RunData data = open_letters();
  const auto batches = held_out_batches(data, evaluation_samples(data, config_.train), config_.train.micro_batch_size);
  const BigramModel model = count_bigrams(data.train->dataset(), 257, tokenizer_->end_of_text());
  double bits = 0;
  for (const Batch& batch : batches)
    for (size_t i = 0; i < batch.targets.size(); ++i)
      if (batch.loss_mask[i] > 0) bits -= std::log2(model.probability(batch.tokens[i], batch.targets[i]));
  const double found = bigram_bits_per_byte(data, batches);
  EXPECT_NEAR(found, bits / target_bytes(batches, *tokenizer_), 1e-9 * found);
  EXPECT_GT(found, 6);  // it never saw these letters; who did needs almost nothing
}

// A start that ended before a checkpoint was made, in each way, and then one with other text or another tokenizer.
class LeftOverTest : public ::testing::Test {
 protected:
  LeftOverTest() {
    config_.train.runs_folder = own_ / "runs";
    config_.data.bpe.vocab_size = 270;
    config_.data.held_out_fraction = 0.2;
    config_.data.data = write("a", "the king asked his council of experts about ships and corn. ");
    other_ = write("b", "quite another text, of quite another kind, with quite other words. ");
  }
  std::string write(const std::string& name, const std::string& words) {
    std::string text;
    for (int i = 0; i < 20; ++i) text += words;
    write_file_atomically(own_ / (name + ".txt"), text);
    return own_ / (name + ".txt");
  }
  RunData prepare(const std::string& run) {
    config_.train.run = run;
    const RunFolder folder(config_.train.runs_folder, run);
    std::FILE* said = std::tmpfile();
    Progress progress(said, {});
    RunData data = prepare_run_data(config_, folder, progress);
    std::fclose(said);
    return data;
  }

  test::TempFolder own_;
  RunConfig config_;
  std::string other_;
};

TEST_F(LeftOverTest, DecidesNothingOfARunThatNeverTrained) {
  prepare("run");
  config_.data.data = other_;
  RunData data = prepare("run"), expected = prepare("untouched");
  EXPECT_EQ(data.tokenizer->hash(), expected.tokenizer->hash());
  EXPECT_EQ(data.fingerprint, expected.fingerprint);
  config_.data.bpe.vocab_size = 265;
  EXPECT_EQ(prepare("run").tokenizer->vocab_size(), 265);
  // A tokenizer that is given, and then another one.
  for (const int64_t size : {259, 260}) {
    BpeTrainerConfig bytes;
    bytes.vocab_size = size;
    BpeTrainer trainer(bytes);
    trainer.add("abcabcabc abcabcabc");
    trainer.train().save(own_ / (std::to_string(size) + ".json"));
    config_.data.tokenizer = own_ / (std::to_string(size) + ".json");
    EXPECT_EQ(prepare("run").tokenizer->vocab_size(), size);
  }
}

// Of a first save that failed nothing but the folder is there.
TEST_F(LeftOverTest, AnEmptyFolderOfCheckpointsIsNoCheckpoint) {
  const std::string first = prepare("run").fingerprint;
  fs::create_directories(own_ / "runs/run/checkpoints");
  config_.data.data = other_;
  EXPECT_NE(prepare("run").fingerprint, first);
}

TEST_F(LeftOverTest, ARunWithACheckpointKeepsWhatItWasBegunWith) {
  const RunData first = prepare("run");
  fs::create_directories(own_ / "runs/run/checkpoints/step-2");
  config_.data.data = other_;
  const RunData data = prepare("run");
  EXPECT_EQ(data.fingerprint, first.fingerprint);
  EXPECT_EQ(data.tokenizer->hash(), first.tokenizer->hash());
}

TEST_F(LeftOverTest, WhatAFolderHasThatIsNoTextIsTold) {
  fs::create_directories(own_ / "text");
  fs::rename(other_, own_ / "text/b.txt");
  write_file_atomically(own_ / "text/picture.png", std::string("\x89PNG\0\0", 6));
  fs::create_symlink("nowhere", own_ / "text/link.txt");
  config_.data.data = own_ / "text";
  const auto warnings = prepare("run").warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("1 binary file (" + (own_ / "text/picture.png").string() + ")"), std::string::npos);
  EXPECT_NE(warnings[0].find("1 broken link ("), std::string::npos);
}

}  // namespace
}  // namespace witan
