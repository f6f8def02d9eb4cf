#include "witan/data/stats/dataset_statistics.h"

#include <array>
#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "witan/data/datasets/indexed_dataset.h"

namespace witan {
namespace {

using nlohmann::json;

const fs::path kGolden = golden("stats");

StatisticsOptions options_in(const TempFolder& folder) {
  StatisticsOptions options;
  options.temporary = folder.path();
  return options;
}

void expect_summary(const LengthHistogram& histogram, const json& golden, const std::string& name) {
  EXPECT_EQ(histogram.sum(), golden["sum"]) << name;
  EXPECT_EQ(histogram.least(), golden["least"]) << name;
  EXPECT_EQ(histogram.most(), golden["most"]) << name;
  for (const auto& [share, key] : {std::pair{0.1, "10%"}, {0.5, "median"}, {0.9, "90%"}}) {
    const int64_t given = histogram.quantile(share), exact = golden[key];
    EXPECT_LE(given, exact) << name << " " << key;
    EXPECT_GE(static_cast<double>(given), 0.99 * static_cast<double>(exact)) << name << " " << key;
  }
}

template <class Counts>
json by_script(const Counts& counts) {
  json named = json::object();
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) named[std::string(kScripts[i])] = counts[i];
  return named;
}

void expect_golden(const DatasetStatistics& found) {
  const json expected = json::parse(read_file(kGolden / "statistics.json"));
  EXPECT_EQ(found.documents, expected["documents"]);
  expect_summary(found.bytes, expected["bytes"], "bytes");
  expect_summary(found.characters, expected["characters"], "characters");
  expect_summary(found.words, expected["words"], "words");
  EXPECT_EQ(by_script(found.letters), expected["letters"]);
  EXPECT_EQ(by_script(found.main_documents), expected["main_documents"]);
  EXPECT_EQ(found.duplicate_documents, expected["duplicate_documents"]);
}

// Every byte is a token, and so is <|endoftext|>.
std::shared_ptr<const Tokenizer> byte_tokenizer() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  spec.added = {{256, "<|endoftext|>", true}};
  spec.tokens.emplace_back("<|endoftext|>");
  return std::make_shared<Tokenizer>(spec);
}

TEST(DatasetStatistics, MatchPython) {
  TempFolder folder;
  StatisticsOptions options = options_in(folder);
  const auto sources = find_sources({kGolden / "rows.jsonl"}).files;
  const DatasetStatistics one = text_statistics(sources, options);
  expect_golden(one);
  EXPECT_EQ(one.duplicate_size, json::parse(read_file(kGolden / "statistics.json"))["duplicate_size"]);
  EXPECT_FALSE(one.has_tokens);
  ASSERT_EQ(one.parts.size(), 1u);
  EXPECT_EQ(one.parts[0].documents, 64);
  EXPECT_EQ(one.parts[0].bytes, one.bytes.sum());
  options.threads = 4;
  options.memory = 1;
  expect_golden(text_statistics(sources, options));
}

std::vector<std::pair<int64_t, double>> repetition_of(const DatasetStatistics& found) {
  std::vector<std::pair<int64_t, double>> rules;
  for (const auto& rule : found.repetition) rules.emplace_back(rule.documents, rule.shares);
  return rules;
}

// datatrove and Python's Counter give the same results for the same texts, with any number of workers.
TEST(DatasetStatistics, CountRepetitionAndNgrams) {
  TempFolder folder;
  StatisticsOptions options = options_in(folder);
  const auto sources = find_sources({kGolden / "rows.jsonl"}).files;
  const DatasetStatistics found = text_statistics(sources, options);
  const json expected = json::parse(read_file(kGolden / "repetition.json"));
  int64_t above_any = 0;
  std::array<int64_t, kRepetitionRules.size()> above{};
  for (const json& shares : expected["rows"]) {
    bool any = false;
    for (size_t rule = 0; rule < above.size(); ++rule) {
      const bool over = shares[rule] > kRepetitionRules[rule].limit;
      above[rule] += over ? 1 : 0;
      any |= over;
    }
    above_any += any ? 1 : 0;
  }
  for (size_t rule = 0; rule < above.size(); ++rule)
    EXPECT_EQ(found.repetition[rule].documents, above[rule]) << kRepetitionRules[rule].name;
  EXPECT_EQ(found.repetitive_documents, above_any);
  EXPECT_EQ(found.ngrams, expected["ngrams"]);
  EXPECT_EQ(found.ngram_error, 0);
  std::vector<int64_t> counts;
  for (const FrequentNgram& ngram : found.frequent_ngrams) counts.push_back(ngram.count);
  EXPECT_EQ(json(counts), expected["frequent"]);
  options.threads = 4;
  const DatasetStatistics again = text_statistics(sources, options);
  EXPECT_EQ(again.frequent_ngrams, found.frequent_ngrams);
  EXPECT_EQ(repetition_of(again), repetition_of(found));
}

TEST(DatasetStatistics, CountTokensOfTextsAndShardsEqually) {
  TempFolder folder;
  StatisticsOptions options = options_in(folder);
  options.tokenizer = byte_tokenizer();
  options.threads = 3;
  const auto sources = find_sources({kGolden / "rows.jsonl"}).files;
  const DatasetStatistics texts = text_statistics(sources, options);
  expect_golden(texts);
  EXPECT_EQ(texts.tokens.sum(), texts.bytes.sum());
  IndexedWriter writer(folder / "my", 257);
  std::vector<int64_t> counts(257);
  read_corpus(sources, {}, [&](const Document& document) {
    auto tokens = options.tokenizer->encode(document.text);
    tokens.push_back(256);
    for (const int32_t token : tokens) ++counts[static_cast<size_t>(token)];
    writer.add(tokens);
  });
  writer.finish();
  const DatasetStatistics shards = token_statistics(*open_tokens(folder / "my"), options);
  expect_golden(shards);
  EXPECT_EQ(shards.tokens.sum(), texts.tokens.sum() + 64);
  EXPECT_EQ(shards.token_counts, counts);
  counts[256] = 0;
  EXPECT_EQ(texts.token_counts, counts);
  options.tokenizer = nullptr;
  const DatasetStatistics bare = token_statistics(*open_tokens(folder / "my"), options);
  EXPECT_FALSE(bare.has_text);
  EXPECT_EQ(bare.tokens.sum(), shards.tokens.sum());
  EXPECT_EQ(bare.bytes.count(), 0);
}

TEST(DatasetStatistics, FindEqualDocumentsFromTokens) {
  TempFolder folder;
  const MemoryDataset data({{1, 2, 3}, {4}, {1, 2, 3}, {}, {4}, {4}});
  const DatasetStatistics found = token_statistics(data, options_in(folder));
  EXPECT_EQ(found.documents, 6);
  EXPECT_EQ(found.duplicate_documents, 3);
  EXPECT_EQ(found.duplicate_size, 5);
  EXPECT_EQ(found.token_counts, (std::vector<int64_t>{0, 2, 2, 2, 3}));
  EXPECT_EQ(found.tokens.least(), 0);
}

}  // namespace
}  // namespace witan
