#include "witan/tokenizer/training/bpe_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

BpeTrainerConfig config_of(int64_t vocab_size, std::vector<std::string> special = {"<|endoftext|>"}) {
  BpeTrainerConfig config;
  config.vocab_size = vocab_size;
  config.special_tokens = std::move(special);
  return config;
}

Tokenizer train_on(const BpeTrainerConfig& config, const std::vector<std::string>& documents) {
  size_t next = 0;
  return train_bpe(config, [&]() -> std::optional<std::string_view> {
    if (next == documents.size()) return std::nullopt;
    return documents[next++];
  });
}

// Counts all pairs of all words anew for each merge.
std::vector<Merge> merges_by_definition(const std::vector<std::string>& documents, const Tokenizer& bytes,
                                        int64_t merges, int64_t min_frequency) {
  std::vector<std::vector<int32_t>> words;
  for (const std::string& document : documents)
    Pretokenizer({std::string(kLlama3Pattern)}).split(document, [&](std::string_view word) {
      words.push_back(bytes.encode(word));
    });
  std::vector<std::string> tokens;
  for (int32_t id = 0; id < 256; ++id) tokens.emplace_back(bytes.token_bytes(id));
  std::vector<Merge> made;
  while (static_cast<int64_t>(tokens.size()) < 256 + merges) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& word : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    const auto best = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second < b.second : a.first > b.first;
    });
    if (best == counts.end() || best->second < min_frequency) break;
    const auto [left, right] = best->first;
    const std::string joined = tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
    const auto same = std::find(tokens.begin(), tokens.end(), joined);
    const auto result = static_cast<int32_t>(same - tokens.begin());
    if (same == tokens.end()) tokens.push_back(joined);
    made.push_back({left, right, result});
    for (auto& word : words)
      for (size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] = result;
          word.erase(word.begin() + static_cast<ptrdiff_t>(i) + 1);
        }
  }
  return made;
}

TEST(BpeTrainer, FollowsTheDefinition) {
  std::mt19937 random(5);
  const Tokenizer bytes = BpeTrainer(config_of(256, {})).train();
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> documents(3);
    const unsigned letters = 2 + random() % 4;
    for (std::string& document : documents)
      for (int i = 0; i < 150; ++i) document += random() % 6 == 0 ? ' ' : static_cast<char>('a' + random() % letters);
    BpeTrainerConfig config = config_of(256 + 60, {});
    config.min_frequency = 1 + round % 3;
    EXPECT_EQ(train_on(config, documents).spec().merges,
              merges_by_definition(documents, bytes, 60, config.min_frequency))
        << "round " << round;
  }
}

TEST(BpeTrainer, SpecialTokensHaveTheLastIds) {
  const Tokenizer tokenizer = train_on(config_of(260, {"<|endoftext|>", "<pad>"}), {"ababab abab cdcd cdcd cdcd efg"});
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_EQ(tokenizer.token_id("<|endoftext|>"), 258);
  EXPECT_EQ(tokenizer.token_id("<pad>"), 259);
  EXPECT_EQ(tokenizer.end_of_text(), 258);
  EXPECT_EQ(tokenizer.token_id("!"), 0);  // GPT-2's byte order
}

TEST(BpeTrainer, SmallTextsGiveSmallVocabularies) {
  const Tokenizer tokenizer = train_on(config_of(1000), {"aaaa b"});
  EXPECT_EQ(tokenizer.vocab_size(), 258);  // only "aa" occurs more than once
  EXPECT_EQ(tokenizer.end_of_text(), 257);
  EXPECT_EQ(train_on(config_of(1000), {}).vocab_size(), 257);
  EXPECT_EQ(train_on(config_of(1000), {"", ""}).vocab_size(), 257);
}

TEST(BpeTrainer, IsIndependentOfTheOrderOfDocuments) {
  const std::vector<std::string> forward = {"the cat sat on the mat", "on the hat the cat sat", "\xFF\xFE mat hat"};
  const std::vector<std::string> backward(forward.rbegin(), forward.rend());
  EXPECT_EQ(train_on(config_of(300), forward).hash(), train_on(config_of(300), backward).hash());
}

TEST(BpeTrainer, ReportsProgress) {
  BpeTrainer trainer(config_of(260));
  trainer.add("ababab ababab abab");
  std::vector<std::pair<int64_t, int64_t>> seen;
  trainer.train([&](int64_t done, int64_t wanted) { seen.emplace_back(done, wanted); });
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {2, 3}, {3, 3}}));
  EXPECT_EQ(trainer.distinct_words(), 3);  // "ababab", " ababab", " abab"
}

TEST(BpeTrainer, TrainsOnLongWordsQuickly) {
  BpeTrainer trainer(config_of(2000));
  std::mt19937 random(9);
  std::string word;
  for (int i = 0; i < 1 << 20; ++i) word += static_cast<char>('a' + random() % 26);
  trainer.add(word);
  trainer.add(std::string(1 << 20, 'a'));
  EXPECT_EQ(trainer.train().vocab_size(), 2000);
}

TEST(BpeTrainer, RefusesImpossibleConfigurations) {
  EXPECT_EQ(test::message_of<ConfigError>([] { BpeTrainer(config_of(256)); }),
            "tokenizer_vocab_size = 256: must be from 257 (256 bytes and 1 special tokens) to 16777216");
  EXPECT_EQ(test::message_of<ConfigError>([] { BpeTrainer(config_of(int64_t{1} << 40)); }).substr(0, 20),
            "tokenizer_vocab_size");
  EXPECT_EQ(test::message_of<ConfigError>([] {
              BpeTrainer(config_of(300, {"x>", "x>"}));
            }),
            "the special token x> is given twice");
  EXPECT_EQ(test::message_of<ConfigError>([] { BpeTrainer(config_of(300, {""})); }),
            "a special token must not be empty");
  EXPECT_EQ(test::message_of<ConfigError>([] { BpeTrainer(config_of(300, {"\xFF"})); }),
            "a special token is not valid UTF-8");
  EXPECT_EQ(test::message_of<ConfigError>([] { train_on(config_of(300, {"a"}), {}); }),
            "the special token \"a\" could also be a pre-token of ordinary text; choose one that cannot, such as "
            "<|endoftext|>");
  BpeTrainerConfig config;
  config.pattern = "word";
  EXPECT_EQ(test::message_of<ConfigError>([&] { BpeTrainer{config}; }),
            "tokenizer_pattern = word: must be llama3, gpt2 or qwen2");
}

TEST(BpeTrainer, FieldsSetTheConfiguration) {
  BpeTrainerConfig config;
  const Fields fields = config.fields();
  set_field(fields, "tokenizer_vocab_size", "512", "test");
  set_field(fields, "tokenizer_pattern", "gpt2", "test");
  set_field(fields, "tokenizer_min_frequency", "7", "test");
  EXPECT_EQ(config.vocab_size, 512);
  EXPECT_EQ(config.pattern, "gpt2");
  EXPECT_EQ(config.min_frequency, 7);
}

}  // namespace
}  // namespace witan
