#include "witan/data/dedup/dedup.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "data/data_support.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

using Shingles = std::set<std::vector<std::string>>;

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Shingles brute_shingles(const std::string& text, size_t length) {
  const auto words = split_words(text);
  Shingles all;
  const size_t n = std::min(length, words.size());
  for (size_t i = 0; i + n <= words.size(); ++i)
    all.insert({words.begin() + static_cast<ptrdiff_t>(i), words.begin() + static_cast<ptrdiff_t>(i + n)});
  return all;
}

double brute_jaccard(const Shingles& a, const Shingles& b) {
  size_t common = 0;
  for (const auto& shingle : a) common += b.count(shingle);
  return static_cast<double>(common) / static_cast<double>(a.size() + b.size() - common);
}

// The document for which each one is removed, or itself: the first of its connected component of similar pairs.
std::vector<int64_t> brute_clusters(const std::vector<std::string>& texts, size_t length, double least) {
  std::vector<Shingles> sets;
  for (const auto& text : texts) sets.push_back(brute_shingles(text, length));
  std::vector<int64_t> first(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    first[i] = static_cast<int64_t>(i);
    for (size_t j = 0; j < i; ++j) {
      if (texts[i] != texts[j] && brute_jaccard(sets[i], sets[j]) < least) continue;
      const int64_t low = std::min(first[i], first[j]), high = std::max(first[i], first[j]);
      for (auto& one : first)
        if (one == high) one = low;
    }
  }
  return first;
}

// Texts of lower-case words: original ones, copies, and copies with some words replaced.
std::vector<std::string> random_texts(int count, uint64_t seed) {
  const Philox random(seed, 11);
  uint64_t at = 0;
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::vector<std::string> words;
    const uint64_t kind = i == 0 ? 0 : random.below(4, at++);
    if (kind == 0) {
      for (uint64_t w = 3 + random.below(60, at++); w > 0; --w)
        words.push_back("w" + std::to_string(random.below(500, at++)));
    } else {
      words = split_words(texts[random.below(static_cast<uint64_t>(i), at++)]);
      for (uint64_t changes = kind == 1 ? 0 : random.below(6, at++); changes > 0; --changes) {
        std::string& word = words[random.below(words.size(), at++)];
        word = "x" + std::to_string(random.below(500, at++));
      }
    }
    std::string text;
    for (const auto& word : words) text += (text.empty() ? "" : " ") + word;
    texts.push_back(text);
  }
  return texts;
}

std::string rows_of(const std::vector<std::string>& texts) {
  std::string rows;
  for (size_t i = 0; i < texts.size(); ++i) rows += nlohmann::json{{"text", texts[i]}, {"id", i}}.dump() + "\n";
  return rows;
}

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(stream, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

class DedupTest : public ::testing::Test {
 protected:
  DedupOptions options(const std::string& name) const {
    DedupOptions options;
    options.duplicates.temporary = folder_.path();
    options.kept = folder_ / (name + ".jsonl");
    options.removed = folder_ / (name + ".removed.jsonl");
    return options;
  }
  DedupResult run(const DedupOptions& options) const {
    return dedup_corpus(find_sources({folder_ / "in"}).files, options);
  }
  std::vector<int64_t> ids(const DedupOptions& options) const {
    std::vector<int64_t> ids;
    for (const auto& row : json_lines(read_file(options.kept))) ids.push_back(row["id"]);
    return ids;
  }

  TempFolder folder_;
};

// With bands of two rows, and enough of them to miss no pair above the threshold (3e-9 of those at 0.5), clusters equal
// those from comparing all pairs.
TEST_F(DedupTest, VerifiedClustersMatchAllPairs) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    const auto texts = random_texts(150, seed);
    put(folder_ / "in/rows.jsonl", rows_of(texts));
    DedupOptions verified = options("verified");
    verified.duplicates.bands = {70, 2, seed};
    verified.duplicates.shingles.length = 3;
    verified.duplicates.least_similarity = 0.5;
    const DedupResult result = run(verified);
    const auto expected = brute_clusters(texts, 3, 0.5);
    std::vector<int64_t> kept;
    std::set<int64_t> clusters;
    for (size_t i = 0; i < texts.size(); ++i)
      if (expected[i] == static_cast<int64_t>(i))
        kept.push_back(expected[i]);
      else
        clusters.insert(expected[i]);
    EXPECT_EQ(ids(verified), kept);
    EXPECT_EQ(result.exact + result.near, std::ssize(texts) - std::ssize(kept));
    EXPECT_EQ(result.clusters, std::ssize(clusters));
    EXPECT_GT(result.exact, 0);
    EXPECT_GT(result.near, 0);
    EXPECT_GT(result.rejected_pairs, 0) << "bands of two rows also find dissimilar pairs";
    for (const auto& row : json_lines(read_file(verified.removed))) {
      const int64_t document = row["document"], first = row["kept"]["document"];
      EXPECT_EQ(first, expected[static_cast<size_t>(document)]);
      EXPECT_EQ(row["row"], document + 1);
      EXPECT_EQ(row["kept"]["row"], first + 1);
      const auto& text = texts[static_cast<size_t>(document)];
      const bool exact = std::find(texts.begin(), texts.begin() + document, text) != texts.begin() + document;
      EXPECT_EQ(row["duplicate"], exact ? "exact" : "near");
    }
  }
}

// Without verification, candidates are the pairs that agree in a band, found here from all pairs of signatures.
TEST_F(DedupTest, CandidatesMatchAllPairsOfSignatures) {
  const auto texts = random_texts(200, 9);
  put(folder_ / "in/rows.jsonl", rows_of(texts));
  const DedupOptions candidates = options("candidates");
  run(candidates);
  const DuplicateFinder finder(candidates.duplicates);
  std::vector<std::vector<DocumentKey>> bands;
  for (const auto& text : texts) bands.push_back(finder.keys_of(text).bands);
  DisjointSets sets(std::ssize(texts));
  for (size_t i = 0; i < texts.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      for (size_t band = 0; band < bands[i].size(); ++band)
        if (bands[i][band] == bands[j][band]) sets.join(static_cast<int64_t>(i), static_cast<int64_t>(j));
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < std::ssize(texts); ++i)
    if (sets.first(i) == i) kept.push_back(i);
  EXPECT_EQ(ids(candidates), kept);
}

TEST_F(DedupTest, ExactDuplicatesMatchAMap) {
  const auto texts = random_texts(400, 21);
  put(folder_ / "in/rows.jsonl", rows_of(texts));
  DedupOptions exact = options("exact");
  exact.duplicates.near = false;
  const DedupResult result = run(exact);
  std::map<std::string, int64_t> first;
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < std::ssize(texts); ++i)
    if (first.emplace(texts[static_cast<size_t>(i)], i).second) kept.push_back(i);
  EXPECT_EQ(ids(exact), kept);
  EXPECT_EQ(result.exact, std::ssize(texts) - std::ssize(kept));
  EXPECT_EQ(result.near, 0);
  uint64_t bytes = 0;
  for (const auto& row : json_lines(read_file(exact.removed))) bytes += texts[row["document"].get<size_t>()].size();
  EXPECT_EQ(result.exact_bytes, bytes);
}

// The keys of 1500 documents exceed the second run's memory twenty times.
TEST_F(DedupTest, IsIndependentOfThreadsAndMemory) {
  const auto texts = random_texts(1500, 4);
  put(folder_ / "in/a.jsonl", rows_of({texts.begin(), texts.begin() + 700}));
  put(folder_ / "in/b.jsonl.gz", gzip(rows_of({texts.begin() + 700, texts.end()})));
  for (const bool near : {true, false})
    for (const bool verified : {false, true}) {
      if (verified && !near) continue;
      DedupOptions one = options("one"), other = options("other");
      one.duplicates.near = other.duplicates.near = near;
      if (verified) one.duplicates.least_similarity = other.duplicates.least_similarity = 0.8;
      other.threads = 5;
      other.duplicates.memory = 16 << 10;
      const DedupResult a = run(one), b = run(other);
      EXPECT_EQ(a.spilled, 0u);
      EXPECT_EQ(b.spilled > 0, near);
      EXPECT_EQ(read_file(one.kept), read_file(other.kept));
      EXPECT_EQ(read_file(one.removed), read_file(other.removed));
      EXPECT_EQ(a.near, b.near);
      EXPECT_EQ(a.clusters, b.clusters);
    }
}

TEST_F(DedupTest, KeepsRowsAndConvertsText) {
  put(folder_ / "in/a.txt", "The king\nasked \"why\".\n");
  put(folder_ / "in/b.jsonl",
      "{ \"meta\": {\"n\": 1e5},  \"text\":\"the  king asked why?\" }\r\n\n{\"text\": \"\"}\nno row\n"
      "{\"text\":\"ships\"}\n{\"text\":\"Ships!\"}");
  DedupOptions with = options("out");
  with.duplicates.normalization = Normalization::words;
  with.corpus.bad_row_share = 0.5;
  const DedupResult result = run(with);
  EXPECT_EQ(read_file(with.kept), "{\"text\":\"The king\\nasked \\\"why\\\".\\n\"}\n{\"text\":\"ships\"}\n");
  const auto removed = json_lines(read_file(with.removed));
  ASSERT_EQ(removed.size(), 2u);
  const std::string in = fs::canonical(folder_ / "in").string();
  EXPECT_EQ(removed[0].dump(),
            "{\"document\":1,\"duplicate\":\"exact\",\"kept\":{\"document\":0,\"row\":null,\"source\":\"" + in +
                "/a.txt\"},\"row\":1,\"source\":\"" + in + "/b.jsonl\"}");
  EXPECT_EQ(removed[1]["row"], 6);
  EXPECT_EQ(removed[1]["kept"]["row"], 5);
  EXPECT_EQ(result.corpus.bad_rows, 1);
  EXPECT_EQ(result.corpus.empty_documents, 1);
}

TEST_F(DedupTest, CountsWithoutWriting) {
  put(folder_ / "in/rows.jsonl", rows_of(random_texts(100, 2)));
  DedupOptions dry = options("dry"), wet = options("wet");
  dry.kept.clear();
  const DedupResult counted = run(dry), written = run(wet);
  EXPECT_EQ(counted.exact, written.exact);
  EXPECT_EQ(counted.near, written.near);
  EXPECT_EQ(counted.near_bytes, written.near_bytes);
  EXPECT_EQ(read_file(dry.removed), read_file(wet.removed));
  EXPECT_FALSE(fs::exists(folder_ / "dry.jsonl"));
}

TEST_F(DedupTest, DetectsChangedSources) {
  put(folder_ / "in/rows.jsonl", rows_of({"one two", "three four", "one two"}));
  const DedupOptions changed = options("out");
  const auto change = [&](const std::string& to) {
    return message_of<DataError>([&] {
      bool done = false;
      dedup_corpus(find_sources({folder_ / "in"}).files, changed, [&](const DedupProgress& at) {
        if (at.phase == DedupPhase::hashing && !done) put(folder_ / "in/rows.jsonl", to);
        done = true;
      });
    });
  };
  EXPECT_THAT(change(rows_of({"one two", "three five", "one two"})), ::testing::HasSubstr("rows.jsonl: it changed"));
  put(folder_ / "in/rows.jsonl", rows_of({"one two", "three four", "one two"}));
  EXPECT_THAT(change(rows_of({"one two"})), ::testing::HasSubstr("3 documents when they were read first, and 1"));
  EXPECT_FALSE(fs::exists(changed.kept));
  EXPECT_FALSE(fs::exists(changed.removed));
}

TEST_F(DedupTest, RefusesMeaninglessOptions) {
  put(folder_ / "in/rows.jsonl", rows_of({"one"}));
  DedupOptions bad = options("out");
  bad.duplicates.shingles.length = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { run(bad); }), ::testing::HasSubstr("--ngram"));
  bad = options("out");
  bad.duplicates.least_similarity = 1.5;
  EXPECT_THAT(message_of<ConfigError>([&] { run(bad); }), ::testing::HasSubstr("--verify"));
}

}  // namespace
}  // namespace witan
