#include "witan/data/stats/dataset_statistics.h"

#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/data/corpus/parallel_documents.h"
#include "witan/data/dedup/minhash.h"
#include "witan/data/dedup/words.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

constexpr size_t kMostNgrams = 30;

struct MeasuredDocument {
  TextMeasure text;
  RepetitionShares repetition{};
  std::optional<HashedWords> words;
  std::vector<int32_t> tokens;
  DocumentKey key;
  std::unique_ptr<const std::string> decoded;  // what the words point into, where it is the text of tokens
};

// The beginning of a text, whole characters.
std::string_view repetition_part(std::string_view text) {
  if (text.size() <= kMostRepetitionBytes) return text;
  size_t end = kMostRepetitionBytes;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

// `text` must outlive the measurements.
void measure_words(std::string_view text, MeasuredDocument& measured) {
  measured.text = measure_text(text);
  measured.key = text_key(text, Normalization::space);
  const std::string_view part = repetition_part(text);
  const int64_t characters = part.size() == text.size() ? measured.text.characters : measure_text(part).characters;
  measured.words.emplace(part);
  measured.repetition = measure_repetition(part, characters, *measured.words);
}

// Adds up documents, in order.
class Summary {
 public:
  explicit Summary(const StatisticsOptions& options) : keys_(options.temporary, options.memory) {}

  void add(const MeasuredDocument& document) {
    ++all.documents;
    if (all.has_text) add_text(document.text);
    if (all.has_text) add_repetition(document);
    if (all.has_tokens) add_tokens(document.tokens);
    // The key carries the document's size instead of its number, so that sizes need no memory of their own.
    keys_.add({document.key, all.has_text ? document.text.bytes : std::ssize(document.tokens)});
  }

  DatasetStatistics finish() {
    KeyedDocument item, last;
    for (bool first = true; keys_.next(item); first = false) {
      if (!first && item.key == last.key) {
        ++all.duplicate_documents;
        all.duplicate_size += item.document;
      }
      last = item;
    }
    all.frequent_ngrams = ngrams_.most_frequent(kMostNgrams);
    all.ngrams = ngrams_.added();
    all.ngram_error = ngrams_.error();
    return std::move(all);
  }

  DatasetStatistics all;

 private:
  void add_text(const TextMeasure& text) {
    all.bytes.add(text.bytes);
    all.characters.add(text.characters);
    all.words.add(text.words);
    for (size_t script = 0; script < kScripts.size(); ++script) all.letters[script] += text.letters[script];
    if (text.main_script() < kScripts.size()) ++all.main_documents[text.main_script()];
  }

  void add_repetition(const MeasuredDocument& document) {
    bool above = false;
    for (size_t rule = 0; rule < kRepetitionRules.size(); ++rule) {
      const bool over = document.repetition[rule] > kRepetitionRules[rule].limit;
      all.repetition[rule].documents += over ? 1 : 0;
      all.repetition[rule].shares += document.repetition[rule];
      above |= over;
    }
    if (above) {
      ++all.repetitive_documents;
      all.repetitive_bytes += document.text.bytes;
    }
    for (size_t i = 0; i + kFrequentWords <= document.words->size(); ++i)
      ngrams_.add(document.words->hash(i, kFrequentWords), document.words->text(i, kFrequentWords));
  }

  void add_tokens(const std::vector<int32_t>& tokens) {
    all.tokens.add(std::ssize(tokens));
    for (const int32_t token : tokens) {
      const auto id = static_cast<size_t>(token);
      if (id >= all.token_counts.size()) all.token_counts.resize(id + 1);
      ++all.token_counts[id];
    }
  }

  KeySorter keys_;
  FrequentNgrams ngrams_;
};

MeasuredDocument measure_tokens(std::vector<int32_t> tokens, const Tokenizer* tokenizer) {
  MeasuredDocument measured;
  if (tokenizer) {
    std::span<const int32_t> shown = tokens;
    const auto end = tokenizer->end_of_text();
    if (end && !shown.empty() && shown.back() == *end) shown = shown.first(shown.size() - 1);
    measured.decoded = std::make_unique<const std::string>(replace_invalid_utf8(tokenizer->decode(shown)));
    measure_words(*measured.decoded, measured);
  } else {
    const XXH128_hash_t hash = XXH3_128bits(tokens.data(), tokens.size() * sizeof(int32_t));
    measured.key = {hash.high64, hash.low64};
  }
  measured.tokens = std::move(tokens);
  return measured;
}

// Documents [begin, end) of about kTokensAtOnce tokens, at least one.
int64_t end_of_batch(const TokenDataset& data, int64_t begin) {
  constexpr int64_t kTokensAtOnce = 1 << 20;
  int64_t end = begin;
  for (int64_t tokens = 0; end < data.documents() && tokens < kTokensAtOnce; ++end) tokens += data.length(end);
  return end;
}

constexpr uint8_t kNoLetter = 255;

// The script of each letter, as an index into kScripts.
std::vector<uint8_t> script_table() {
  std::vector<uint8_t> table(kCodePoints, kNoLetter);
  const auto other = static_cast<uint8_t>(kScripts.size() - 1);
  const auto letters = characters_with("L");
  for (const auto& [first, last] : *letters) std::fill(table.begin() + first, table.begin() + last + 1, other);
  for (uint8_t script = 0; script < other; ++script) {
    const auto ranges = characters_with(kScripts[script]);
    for (const auto& [first, last] : *ranges)
      std::replace(table.begin() + first, table.begin() + last + 1, other, script);
  }
  return table;
}

}  // namespace

DatasetStatistics text_statistics(const std::vector<Source>& sources, const StatisticsOptions& options,
                                  const StatisticsProgress& progress) {
  Summary summary(options);
  summary.all.has_text = true;
  summary.all.has_tokens = options.tokenizer != nullptr;
  if (options.tokenizer) summary.all.token_counts.resize(static_cast<size_t>(options.tokenizer->vocab_size()));
  uint64_t total = 0;
  for (const Source& source : sources) {
    summary.all.parts.push_back({source.path, 0, 0});
    total += source.bytes;
  }
  using Work = ParallelDocuments<MeasuredDocument>;
  Work work(
      options.threads,
      [&](std::string_view text) {
        MeasuredDocument measured;
        measure_words(text, measured);
        if (options.tokenizer) measured.tokens = options.tokenizer->encode_whole(text);
        return measured;
      },
      [&](const Work::Waiting& document, const MeasuredDocument& measured) {
        auto& part = summary.all.parts[static_cast<size_t>(document.source - sources.data())];
        ++part.documents;
        part.bytes += measured.text.bytes;
        summary.add(measured);
      });
  const CorpusStatistics corpus = read_corpus(sources, options.corpus, [&](const Document& document) {
    work.add(document);
    if (progress) progress(document.source_bytes, total);
  });
  work.flush();
  summary.all.corpus = corpus;
  return summary.finish();
}

DatasetStatistics token_statistics(const TokenDataset& data, const StatisticsOptions& options,
                                   const StatisticsProgress& progress) {
  Summary summary(options);
  summary.all.has_tokens = true;
  summary.all.has_text = options.tokenizer != nullptr;
  if (options.tokenizer) summary.all.token_counts.resize(static_cast<size_t>(options.tokenizer->vocab_size()));
  ThreadPool pool(std::max(options.threads, 1));
  int64_t done = 0;
  for (int64_t begin = 0; begin < data.documents();) {
    const int64_t end = end_of_batch(data, begin);
    std::vector<MeasuredDocument> measured(static_cast<size_t>(end - begin));
    pool.run(end - begin, [&](int64_t i) {
      std::vector<int32_t> tokens(static_cast<size_t>(data.length(begin + i)));
      data.read(begin + i, 0, tokens);
      measured[static_cast<size_t>(i)] = measure_tokens(std::move(tokens), options.tokenizer.get());
    });
    for (const MeasuredDocument& document : measured) {
      summary.add(document);
      done += std::ssize(document.tokens);
    }
    if (progress) progress(static_cast<uint64_t>(done), static_cast<uint64_t>(data.tokens()));
    begin = end;
  }
  return summary.finish();
}

size_t TextMeasure::main_script() const {
  const auto most = std::max_element(letters.begin(), letters.end());
  return *most == 0 ? kScripts.size() : static_cast<size_t>(most - letters.begin());
}

TextMeasure measure_text(std::string_view text) {
  static const std::vector<uint8_t> scripts = script_table();
  const CharacterRole* roles = character_roles().data();
  TextMeasure measure;
  measure.bytes = static_cast<int64_t>(text.size());
  bool inside = false;  // of a word that goes on
  for (size_t at = 0; at < text.size();) {
    const auto character = static_cast<size_t>(next_character(text, at));
    ++measure.characters;
    if (scripts[character] != kNoLetter) ++measure.letters[scripts[character]];
    const CharacterRole role = roles[character];
    if (role == CharacterRole::alone || (role == CharacterRole::joins && !inside)) ++measure.words;
    inside = role == CharacterRole::joins;
  }
  return measure;
}

}  // namespace witan
