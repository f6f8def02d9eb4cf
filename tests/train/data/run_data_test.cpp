#include "witan/train/data/run_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/data/batches/loader.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/stats/bigram.h"
#include "witan/tokenizer/training/bpe_trainer.h"
#include "witan/train/data/mixture_data.h"

namespace witan {
namespace {

// Token shards with byte tokens.
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
  // Ten times a, ten times b, and so on.
  RunData open_letters() {
    std::vector<std::string> documents;
    for (char letter = 'a'; letter <= 'z'; ++letter) documents.emplace_back(10, letter);
    return open(documents);
  }

  test::TempFolder folder_;
  RunConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(RunDataTest, TrainingAndHeldOutTokensAreDisjoint) {
  const RunData data = open_letters();
  const auto letters = [&](const SampleSource& samples) {
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

// Token files of llm.c and modded-nanogpt, where the end-of-text token begins a document instead of ending it.
TEST_F(RunDataTest, ReadsTokenFilesLikeShards) {
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

// Seven samples in batches of three: the last batches are padded with rows that do not count.
TEST_F(RunDataTest, EvaluationsCountTheSameTargetsOnceInEveryLayout) {
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

TEST_F(RunDataTest, TheFingerprintCoversTokensAndNotOnlyTheirNumber) {
  const std::string first = open({"one two three four", "five six seven"}).fingerprint;
  EXPECT_EQ(open({"one two three four", "five six seven"}).fingerprint, first);
  EXPECT_NE(open({"one two three four", "five six Seven"}).fingerprint, first);
  EXPECT_NE(open({"one two three fou", "rfive six seven"}).fingerprint, first);
}

TEST_F(RunDataTest, TheBigramModelUsesOnlyTrainingText) {
  const RunData data = open_letters();
  const auto batches = held_out_batches(data, evaluation_samples(data, config_.train), config_.train.micro_batch_size);
  const BigramModel model = count_bigrams(data.train->dataset(), 257, tokenizer_->end_of_text());
  double bits = 0;
  for (const Batch& batch : batches)
    for (size_t i = 0; i < batch.targets.size(); ++i)
      if (batch.loss_mask[i] > 0) bits -= std::log2(model.probability(batch.tokens[i], batch.targets[i]));
  const double found = bigram_bits_per_byte(data, batches);
  EXPECT_NEAR(found, bits / target_bytes(batches, *tokenizer_), 1e-9 * found);
  EXPECT_GT(found, 6);  // these letters are not in its text; a model that knew them would need almost no bits
}

// MegatronPretrainingSampler's order: consecutive samples, micro-batch by micro-batch.
TEST_F(RunDataTest, MegatronSamplesKeepTheirOrderInEveryLayout) {
  config_.data.data_samples = "megatron";
  config_.data.split = "6,3,1";
  config_.train.train_iters = 30;
  config_.train.eval_interval = 10;
  config_.train.micro_batch_size = 2;
  config_.train.global_batch_size = 8;
  const RunData data = open_letters();
  EXPECT_GE(data.train->size(), 240);
  EXPECT_GE(data.held_out->size(), 32);
  ASSERT_EQ(data.sets.size(), 1u);
  EXPECT_TRUE(data.sets[0].name == kTestSet && data.sets[0].at_end && data.sets[0].samples->size() >= 8);
  EXPECT_EQ(evaluation_samples(data, config_.train), 8);

  constexpr int64_t kConsumed = 80;
  for (const int64_t ranks : {1, 2, 4})
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Loader loader(data.train,
                    {.micro_batch_size = 2,
                     .global_batch_size = 8,
                     .data_parallel_rank = rank,
                     .data_parallel_size = ranks,
                     .batch = data.batch},
                    kConsumed);
      const auto batches = loader.next();
      for (size_t a = 0; a < batches.size(); ++a) {
        const int64_t micro_batch = rank * 4 / ranks + static_cast<int64_t>(a);
        const Batch expected = make_batch(*data.train, kConsumed + 2 * micro_batch, 2, data.batch);
        EXPECT_EQ(batches[a].tokens, expected.tokens);
      }
    }
}

TEST_F(RunDataTest, MegatronsOrderDependsOnTheNumberOfEpochs) {
  config_.data.data_samples = "megatron";
  config_.data.split = "8,2";
  config_.train.train_iters = 6;
  const RunData data = open_letters();
  config_.train.train_iters = 5;
  EXPECT_EQ(open_letters().fingerprint, data.fingerprint);
  config_.train.train_iters = 50;
  EXPECT_NE(open_letters().fingerprint, data.fingerprint);
  config_.data.split = "1,0,1";
  EXPECT_NE(test::message_of<DataError>([&] { open_letters(); }).find("leaves nothing to evaluate on"),
            std::string::npos);
  const std::string tokens = (folder_ / "tokens").string();
  config_.data.split = "8,2";
  config_.data.data_path = tokens + "," + tokens + "," + tokens;
  EXPECT_NE(test::message_of<DataError>([&] { open_letters(); }).find("give weights"), std::string::npos);
}

TEST_F(RunDataTest, MegatronSplitsMayOmitUnusedParts) {
  config_.data.data_samples = "megatron";
  config_.train.train_iters = 6;
  config_.data.split = "8,1,1";
  const std::string with_evaluations = open_letters().fingerprint;
  config_.train.eval_iters = 0;
  EXPECT_EQ(open_letters().fingerprint, with_evaluations) << "training reads the same";
  config_.data.split = "100,0,0";
  const RunData data = open_letters();
  EXPECT_EQ(data.held_out, nullptr);
  EXPECT_TRUE(data.sets.empty());
  EXPECT_EQ(evaluation_samples(data, config_.train), 0);
  EXPECT_TRUE(held_out_batches(data, 0, 2).empty());
  config_.train.full_validation = true;
  const auto refusal = [&] { return test::message_of<DataError>([&] { open_letters(); }); };
  EXPECT_NE(refusal().find("leaves nothing to evaluate on"), std::string::npos);
  // An evaluated split with a share must have sequences.
  config_.train.full_validation = false;
  config_.train.eval_iters = 1;
  config_.data.split = "999999,500000,1";
  EXPECT_NE(refusal().find("the test split has 0"), std::string::npos);
}

// Datasets of one letter each, inside and outside of a folder.
TEST_F(RunDataTest, MixesDatasetsByWeight) {
  const auto write = [&](const std::string& name, char letter, int documents) {
    IndexedWriter writer(folder_ / name, tokenizer_->vocab_size());
    for (int d = 0; d < documents; ++d) writer.add(tokenizer_->encode(std::string(30, letter)));
    writer.finish();
  };
  write("shards/one", 'a', 20);
  write("shards/two", 'a', 40);
  write("b", 'b', 30);
  write("c", 'c', 30);
  const std::string place = folder_.path().string();
  config_.data.data_path = place + "/shards," + place + "/b," + place + "/c";
  config_.train.train_iters = 40;
  const auto letters = [&](const SampleSource& samples, int64_t begin, int64_t end) {
    std::map<char, int64_t> found;
    std::vector<int32_t> tokens(9);
    for (int64_t i = begin; i < end; ++i) {
      samples.read(i, tokens);
      ++found[tokenizer_->token_bytes(tokens[0])[0]];
    }
    return found;
  };
  const auto near = [](int64_t a, double b) { return std::abs(static_cast<double>(a) - b) <= 2; };
  const auto opened = [&] { return open_run_data(config_, tokenizer_, config_.data.data_path); };

  auto found = letters(*opened().train, 0, 240);  // by size: 60, 30, 30 documents
  EXPECT_TRUE(near(found['a'], 120) && near(found['b'], 60)) << found['a'] << ' ' << found['b'];
  config_.data.data_weights = "1,1,4";
  config_.data.data_temperature = 2;  // proportions 1, 1, 2
  RunData data = opened();
  found = letters(*data.train, 0, 240);
  EXPECT_TRUE(near(found['a'], 60) && near(found['c'], 120)) << found['a'] << ' ' << found['c'];
  const auto uses = data.train->use_of(240);
  ASSERT_EQ(uses.size(), 3u) << "a folder is one dataset";
  EXPECT_EQ(uses[0].samples, found['a']);
  EXPECT_EQ(letters(*data.held_out, 0, data.held_out->per_epoch()).size(), 3u);

  config_.data.data_temperature = 1;
  config_.data.data_schedule = "11=0,1,0";
  data = opened();
  found = letters(*data.train, 70, 240);  // ten steps of seven samples
  EXPECT_EQ(found['b'], 170);
  config_.data.data_schedule.clear();
  config_.data.data_max_epochs = 1;
  config_.train.train_iters = 60;
  EXPECT_NE(test::message_of<DataError>([&] { opened(); }).find("within data_max_epochs = 1"), std::string::npos);
  config_.data.data_max_epochs = 2;
  config_.data.data_weights = "0,1,1";
  config_.train.train_iters = 10;
  EXPECT_EQ(letters(*opened().train, 0, 70)['a'], 0);
  config_.data.data_weights = "1,1";
  EXPECT_NE(test::message_of<ConfigError>([&] { opened(); }).find("2 weights for 3 datasets"), std::string::npos);
}

// Datasets of different sizes are read for the given numbers of epochs, whereas weights would give shares of the
// samples.
TEST_F(RunDataTest, ReadsDatasetsForTheGivenEpochs) {
  const auto write = [&](const std::string& name, int documents) {
    IndexedWriter writer(folder_ / name, tokenizer_->vocab_size());
    for (int d = 0; d < documents; ++d) writer.add(tokenizer_->encode(std::string(30, name[0])));
    writer.finish();
    return (folder_ / name).string();
  };
  config_.data.data_path = write("a", 200) + "," + write("b", 50);
  const auto uses_of = [&](int64_t samples) {
    return open_run_data(config_, tokenizer_, config_.data.data_path).train->use_of(samples);
  };
  config_.data.data_weights = "1x, 3x";
  const auto one = uses_of(700);
  EXPECT_NEAR(one[1].epochs, 3 * one[0].epochs, 0.06);
  EXPECT_GT(one[0].samples, one[1].samples) << "this dataset is larger";
  config_.data.data_schedule = "51=0x,1x";  // from sample 350 on
  const auto before = uses_of(350), after = uses_of(700);
  EXPECT_EQ(after[0].samples, before[0].samples);
  EXPECT_NEAR(before[1].epochs, 3 * before[0].epochs, 0.06);
  const auto refused = [&] { return test::message_of<ConfigError>([&] { uses_of(1); }); };
  config_.data.data_temperature = 2;
  EXPECT_NE(refused().find("data_temperature = 2 would change the epochs"), std::string::npos);
  config_.data.data_temperature = 1;
  config_.data.data_weights = "1x,3";
  EXPECT_NE(refused().find("some are epochs, as 2x, and some are weights"), std::string::npos);
  config_.data.data_weights = "1x,x";
  EXPECT_NE(refused().find("x is not a number"), std::string::npos);
}

// Files and folders of a mixture are tokenized separately; a resumed run reads their tokens.
TEST_F(RunDataTest, MixesTextsByWeight) {
  for (const auto& [name, letter] : {std::pair{"a.txt", 'a'}, {"b.txt", 'b'}, {"more/b.txt", 'b'}}) {
    std::string text;
    for (int i = 0; i < 40; ++i) text.append(20, letter).append("\n\n");
    fs::create_directories((folder_ / name).parent_path());
    write_file_atomically(folder_ / name, text);
  }
  const std::string place = folder_.path().string();
  config_.data.data = place + "/a.txt," + place + "/b.txt," + place + "/more";
  config_.data.data_weights = "3,1,0";
  config_.data.bpe.vocab_size = 257;
  config_.train.runs_folder = place + "/runs";
  std::FILE* quiet = std::fopen("/dev/null", "w");
  {
    Progress progress(quiet, progress_options(quiet));
    const RunFolder folder(config_.train.runs_folder, "mixed");
    const RunData data = prepare_run_data(config_, folder, progress);
    const auto uses = data.train->use_of(80);
    ASSERT_EQ(uses.size(), 3u);
    EXPECT_EQ(uses[0].name, place + "/a.txt");
    EXPECT_NEAR(static_cast<double>(uses[0].samples), 60, 2);
    EXPECT_EQ(uses[2].samples, 0);
    const RunData again = open_prepared_run_data(config_, folder);
    EXPECT_EQ(again.fingerprint, data.fingerprint);
    std::vector<int32_t> one(9), other(9);
    for (int64_t i = 0; i < 80; ++i) {
      data.train->read(i, one);
      again.train->read(i, other);
      EXPECT_EQ(one, other);
    }
  }
  std::fclose(quiet);
}

// Only documents longer than a row are cut.
TEST_F(RunDataTest, PacksWholeDocuments) {
  config_.data.data_packing = "best_fit";
  config_.data.seq_length = 24;
  std::vector<std::string> documents;
  for (char letter = 'a'; letter <= 'z'; ++letter) documents.emplace_back(letter % 5 == 0 ? 60 : 10, letter);
  const RunData data = open(documents);
  ASSERT_TRUE(data.train->packed() && data.held_out->packed());
  const auto trained = data.train->packed_size(), held_out = data.held_out->packed_size();
  EXPECT_GE(trained.documents + held_out.documents, 26);
  EXPECT_GT(trained.cut, 0);
  EXPECT_LT(trained.cut, trained.cut_end_to_end);
  for (int64_t i = 0; i < data.train->per_epoch(); ++i)
    for (const auto& piece : data.train->pieces_of(i))
      EXPECT_TRUE(piece.begin == 0 || data.train->dataset().length(piece.document) > 25);
  EXPECT_EQ(data.train->use_of(3 * data.train->per_epoch()).front().epochs, 3);

  config_.train.full_validation = true;
  int64_t targets = 0;
  for (const Batch& batch : held_out_batches(data, evaluation_samples(data, config_.train), 3))
    targets += batch.loss_tokens;
  EXPECT_EQ(targets, held_out.places);

  const std::string tokens = (folder_ / "tokens").string();
  config_.data.data_path = "1," + tokens + ",2," + tokens;
  const RunData mixed = open_run_data(config_, tokenizer_, config_.data.data_path);
  EXPECT_EQ(mixed.train->packed_size().places, 2 * trained.places);
  int64_t of_second = 0;
  for (int64_t i = 0; i < 60; ++i)
    of_second += mixed.train->pieces_of(i).front().document >= data.train->dataset().documents();
  EXPECT_NEAR(static_cast<double>(of_second), 40, 2);
}

// Every validation sample is read once, whatever the weights for training.
TEST_F(RunDataTest, FullValidationUsesEverySampleOnce) {
  open_letters();
  const std::string tokens = (folder_ / "tokens").string();
  config_.train.train_iters = 2;
  config_.data.data_path = "1," + tokens + ",9," + tokens;
  config_.train.full_validation = true;
  const auto counted = [&](const RunData& data) {
    std::map<std::vector<int32_t>, int> seen;
    std::vector<int32_t> sample(9);
    for (int64_t i = 0; i < evaluation_samples(data, config_.train); ++i) {
      data.held_out->read(i, sample);
      ++seen[sample];
    }
    return seen;
  };
  const auto mixed = counted(open_run_data(config_, tokenizer_, config_.data.data_path));
  config_.data.data_path = tokens;
  const auto alone = counted(open_run_data(config_, tokenizer_, tokens));
  ASSERT_GT(alone.size(), 7u) << "more than eval_iters allows";
  EXPECT_EQ(mixed.size(), alone.size());
  for (const auto& [sample, times] : mixed) EXPECT_EQ(times, 2 * alone.at(sample)) << "the dataset is listed twice";

  config_.data.data_samples = "megatron";
  config_.data.split = "5,5";
  config_.train.train_iters = 1;
  config_.data.data_path = tokens + "," + tokens + "," + tokens;
  const RunData blended = open_run_data(config_, tokenizer_, tokens);
  for (const auto& [sample, times] : counted(blended)) EXPECT_EQ(times % 3, 0);
  EXPECT_EQ(evaluation_samples(blended, config_.train), 3 * ((13 * 11 - 1) / 8));
}

TEST_F(RunDataTest, ScheduledWeightsMustHaveIncreasingSteps) {
  const auto refused = [](const char* schedule) {
    return test::message_of<ConfigError>([&] { parse_data_schedule(schedule, 2); });
  };
  const auto phases = parse_data_schedule("10=1,0; 20=0.5,2", 2);
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[1].step, 20);
  EXPECT_EQ(phases[1].weights, (std::vector<double>{0.5, 2}));
  EXPECT_NE(refused("1=1,0").find("is not STEP=W1,W2"), std::string::npos);
  EXPECT_NE(refused("9=1,0;9=0,1").find("is not STEP=W1,W2"), std::string::npos);
  EXPECT_NE(refused("9").find("is not STEP=W1,W2"), std::string::npos);
  EXPECT_NE(refused("9=1,x").find("x is not a number"), std::string::npos);
  EXPECT_NE(refused("9=1").find("1 weight for 2 datasets"), std::string::npos);
}

// Rows after the last sample do not count.
TEST_F(RunDataTest, PadsSourcesThatEnd) {
  config_.data.data_samples = "megatron";
  config_.data.split = "8,2";
  config_.train.train_iters = config_.train.eval_interval = 1;
  const RunData data = open_letters();
  const int64_t size = *data.held_out->size();
  int64_t targets = 0;
  for (int rank = 0; rank < 3; ++rank)
    for (const Batch& batch : held_out_batches(data, size, 3, rank, 3)) {
      EXPECT_EQ(batch.tokens.size(), 24u);
      targets += batch.loss_tokens;
    }
  int64_t expected = 0;
  for (int64_t i = 0; i < size; ++i) expected += make_batch(*data.held_out, i, 1, data.batch).loss_tokens;
  EXPECT_EQ(targets, expected);
}

// A start ends at each stage before its first checkpoint, and another start with other text or another tokenizer
// follows.
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

TEST_F(LeftOverTest, DoesNotAffectARunThatNeverTrained) {
  prepare("run");
  config_.data.data = other_;
  RunData data = prepare("run"), expected = prepare("untouched");
  EXPECT_EQ(data.tokenizer->hash(), expected.tokenizer->hash());
  EXPECT_EQ(data.fingerprint, expected.fingerprint);
  config_.data.bpe.vocab_size = 265;
  EXPECT_EQ(prepare("run").tokenizer->vocab_size(), 265);
  // First one given tokenizer, then another one.
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

// A failed first save has left only its folder.
TEST_F(LeftOverTest, AnEmptyCheckpointFolderIsIgnored) {
  const std::string first = prepare("run").fingerprint;
  fs::create_directories(own_ / "runs/run/checkpoints");
  config_.data.data = other_;
  EXPECT_NE(prepare("run").fingerprint, first);
}

TEST_F(LeftOverTest, ARunWithACheckpointKeepsItsSettings) {
  const RunData first = prepare("run");
  fs::create_directories(own_ / "runs/run/checkpoints/step-2");
  config_.data.data = other_;
  const RunData data = prepare("run");
  EXPECT_EQ(data.fingerprint, first.fingerprint);
  EXPECT_EQ(data.tokenizer->hash(), first.tokenizer->hash());
}

TEST_F(LeftOverTest, ReportsFilesOfAFolderThatAreNotText) {
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
