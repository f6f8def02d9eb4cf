// Statistics of a corpus or of token shards: numbers and lengths of documents, scripts, duplicates, and tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "witan/data/corpus/corpus.h"
#include "witan/data/datasets/token_dataset.h"
#include "witan/data/stats/frequent_ngrams.h"
#include "witan/data/stats/length_histogram.h"
#include "witan/data/stats/repetition.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

// Unicode's names of the scripts that are distinguished; the last one stands for all others.
inline constexpr std::array<std::string_view, 27> kScripts = {
    "Latin",    "Han",      "Cyrillic", "Arabic", "Hangul", "Hiragana", "Katakana",  "Devanagari", "Bengali",
    "Greek",    "Hebrew",   "Thai",     "Tamil",  "Telugu", "Kannada",  "Malayalam", "Gujarati",   "Gurmukhi",
    "Georgian", "Armenian", "Ethiopic", "Khmer",  "Lao",    "Myanmar",  "Sinhala",   "Tibetan",    "other"};

// Counts of a text's bytes, characters, words and letters.
struct TextMeasure {
  int64_t bytes = 0, characters = 0;
  int64_t words = 0;                               // as of data/dedup/words.h
  std::array<int64_t, kScripts.size()> letters{};  // by script
  bool operator==(const TextMeasure&) const = default;

  // The script of most letters, the first of equal ones; nothing (kScripts.size()) without letters.
  size_t main_script() const;
};

// `text` must be valid UTF-8.
TextMeasure measure_text(std::string_view text);

struct StatisticsOptions {
  CorpusOptions corpus;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: texts have no tokens, and tokens no text
  int threads = 1;                             // the result does not depend on it
  uint64_t memory = uint64_t{1} << 30;         // for the hashes of documents; beyond that they are sorted on disk
  fs::path temporary;                          // folder of temporary files
};

// Words of the n-grams that are counted over all documents.
inline constexpr size_t kFrequentWords = 5;
// Repetition and n-grams of a longer text are those of so many bytes at its beginning.
inline constexpr size_t kMostRepetitionBytes = size_t{1} << 20;

struct DatasetStatistics {
  // The documents and bytes of a source of text.
  struct Part {
    fs::path path;
    int64_t documents = 0, bytes = 0;
  };

  int64_t documents = 0;  // without empty ones, if they are texts
  bool has_text = false, has_tokens = false;
  LengthHistogram bytes, characters, words, tokens;       // per document; those of text without tokens are empty
  std::array<int64_t, kScripts.size()> letters{};         // by script
  std::array<int64_t, kScripts.size()> main_documents{};  // by the script of most of their letters
  std::vector<int64_t> token_counts;                      // [vocabulary, or largest id + 1]
  // For each of Gopher's rules the documents above its limit, and the sum of all documents' shares.
  struct Repetition {
    int64_t documents = 0;
    double shares = 0;
  };
  std::array<Repetition, kRepetitionRules.size()> repetition{};
  int64_t repetitive_documents = 0, repetitive_bytes = 0;  // above any limit
  std::vector<FrequentNgram> frequent_ngrams;              // runs of kFrequentWords words, at most 30
  int64_t ngrams = 0, ngram_error = 0;                     // all of them; FrequentNgrams::error()
  int64_t duplicate_documents = 0;  // equal to another one but for white space, which counts once
  int64_t duplicate_size = 0;       // of them, in bytes, or in tokens where there is no text
  CorpusStatistics corpus;          // of texts
  std::vector<Part> parts;          // in the order of the sources
};

// `done` and `total` in bytes on disk, or in tokens. Throws what read_corpus() does.
using StatisticsProgress = std::function<void(uint64_t done, uint64_t total)>;
DatasetStatistics text_statistics(const std::vector<Source>& sources, const StatisticsOptions& options,
                                  const StatisticsProgress& progress = {});

// With a tokenizer, the text of tokens counts, too, without the end-of-text token; what they spell together that is not
// UTF-8 counts as U+FFFD. Throws DataError for tokens outside the tokenizer's vocabulary.
DatasetStatistics token_statistics(const TokenDataset& data, const StatisticsOptions& options,
                                   const StatisticsProgress& progress = {});

}  // namespace witan
