#include "witan/data/stats/bigram.h"

#include <algorithm>
#include <cmath>

#include "witan/base/error.h"

namespace witan {
namespace {

// n1 / (n1 + 2 n2), or 3/4 where a tiny corpus has no such counts.
double discount(int64_t once, int64_t twice) {
  if (once == 0 || twice == 0) return 0.75;
  return static_cast<double>(once) / static_cast<double>(once + 2 * twice);
}

template <class Values, class Get>
double discount_of(const Values& values, Get get) {
  const auto with = [&](int64_t n) {
    return std::count_if(values.begin(), values.end(), [&](const auto& v) { return get(v) == n; });
  };
  return discount(with(1), with(2));
}

// Documents in pieces of bounded size; each piece starts with the token before it, if there is one. Of more than `most`
// tokens: a piece of every so-many-th document.
void visit_runs(const TokenDataset& dataset, std::optional<int32_t> end_of_text, int64_t most,
                const std::function<void(std::optional<int32_t> previous, std::span<const int32_t>)>& visit) {
  constexpr int64_t kPiece = 1 << 20;
  constexpr int64_t kPrefetched = 32;  // documents: a slow disk is waited for by so many at once
  constexpr int64_t kPlaces = 1024;    // all over a dataset that is not read whole
  const bool whole = dataset.tokens() <= most;
  const int64_t documents = dataset.documents();
  const int64_t piece_of_one = whole ? kPiece : std::max<int64_t>(most / kPlaces, 2);
  // The number of documents that have that many tokens if all are of the mean length, or are cut to it.
  const int64_t mean = std::max<int64_t>(dataset.tokens() / std::max<int64_t>(documents, 1), 1);
  const int64_t stride =
      whole ? 1 : std::max<int64_t>(documents / std::max<int64_t>(most / std::min(mean, piece_of_one), 1), 1);
  const auto read_of = [&](int64_t d) { return whole ? dataset.length(d) : std::min(dataset.length(d), piece_of_one); };
  const auto prefetch = [&](int64_t d) {
    if (d < documents) dataset.prefetch(d, 0, std::min(read_of(d), kPiece));
  };
  for (int64_t i = 0; i < kPrefetched; ++i) prefetch(i * stride);
  int64_t visited = 0;
  std::vector<int32_t> piece;
  for (int64_t d = 0; d < documents && visited < most; d += stride) {
    prefetch(d + kPrefetched * stride);
    std::optional<int32_t> previous = end_of_text;
    const int64_t end = read_of(d);
    for (int64_t begin = 0; begin < end; begin += kPiece) {
      piece.resize(static_cast<size_t>(std::min(kPiece, end - begin)));
      visited += static_cast<int64_t>(piece.size());
      dataset.read(d, begin, piece);
      visit(previous, piece);
      previous = piece.back();
    }
  }
}

void require_in_vocabulary(const TokenDataset& dataset, std::span<const int32_t> tokens, int64_t vocab_size) {
  for (const int32_t token : tokens)
    require<DataError>(token >= 0 && token < vocab_size, dataset.name(), ": token id ", token,
                       " is outside the vocabulary of ", vocab_size,
                       ": the file is damaged, or was made with another tokenizer; make it anew");
}

}  // namespace

BigramModel::BigramModel(int64_t vocab_size) : vocab_size_(vocab_size), slots_(1 << 16) {
  require<ConfigError>(vocab_size >= 1, "a bigram model needs a vocabulary");
}

void BigramModel::count(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens)
    require<DataError>(token >= 0 && token < vocab_size_, "token id ", token, " is outside the vocabulary of ",
                       vocab_size_);
  for (size_t i = 1; i < tokens.size(); ++i) {
    const uint64_t bigram = static_cast<uint64_t>(tokens[i - 1]) << 32 | static_cast<uint64_t>(tokens[i]);
    Entry& slot = slot_of(bigram);
    slot.bigram = bigram;
    if (++slot.count == 1 && 2 * ++used_ > slots_.size()) grow();
  }
}

// The slot that counts the bigram, or the free one where it would.
BigramModel::Entry& BigramModel::slot_of(uint64_t bigram) {
  const size_t mask = slots_.size() - 1;
  for (size_t i = (bigram * 0x9E3779B97F4A7C15u) >> 32 & mask;; i = (i + 1) & mask)
    if (slots_[i].count == 0 || slots_[i].bigram == bigram) return slots_[i];
}

void BigramModel::grow() {
  std::vector<Entry> old(2 * slots_.size());
  old.swap(slots_);
  for (const Entry& entry : old)
    if (entry.count > 0) slot_of(entry.bigram) = entry;
}

void BigramModel::finish() {
  entries_.reserve(used_);
  for (const Entry& entry : slots_)
    if (entry.count > 0) entries_.push_back(entry);
  slots_ = {};
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.bigram < b.bigram; });
  row_.assign(static_cast<size_t>(vocab_size_) + 1, 0);
  total_.assign(static_cast<size_t>(vocab_size_), 0);
  for (const Entry& entry : entries_) {
    ++row_[(entry.bigram >> 32) + 1];
    total_[entry.bigram >> 32] += entry.count;
  }
  for (size_t v = 1; v < row_.size(); ++v) row_[v] += row_[v - 1];
  discount_ = discount_of(entries_, [](const Entry& entry) { return entry.count; });
  estimate_continuation();
}

void BigramModel::estimate_continuation() {
  std::vector<int64_t> predecessors(static_cast<size_t>(vocab_size_), 0);
  for (const Entry& entry : entries_) ++predecessors[entry.bigram & 0xFFFFFFFF];
  const double d = discount_of(predecessors, [](int64_t n) { return n; });
  const auto kinds = static_cast<double>(entries_.size()), vocabulary = static_cast<double>(vocab_size_);
  const auto followed = static_cast<double>(vocab_size_ - std::count(predecessors.begin(), predecessors.end(), 0));
  continuation_.assign(static_cast<size_t>(vocab_size_), 1 / vocabulary);
  if (entries_.empty()) return;
  for (size_t w = 0; w < predecessors.size(); ++w)
    continuation_[w] = (std::max(static_cast<double>(predecessors[w]) - d, 0.0) + d * followed / vocabulary) / kinds;
}

double BigramModel::probability(std::optional<int32_t> previous, int32_t token) const {
  const double q = continuation_[static_cast<size_t>(token)];
  if (!previous || total_[static_cast<size_t>(*previous)] == 0) return q;
  const auto v = static_cast<size_t>(*previous);
  const auto begin = entries_.begin() + row_[v], end = entries_.begin() + row_[v + 1];
  const uint64_t bigram = static_cast<uint64_t>(v) << 32 | static_cast<uint64_t>(token);
  const auto found = std::lower_bound(begin, end, bigram, [](const Entry& e, uint64_t key) { return e.bigram < key; });
  const double count = found != end && found->bigram == bigram ? static_cast<double>(found->count) : 0.0;
  const auto followers = static_cast<double>(end - begin), total = static_cast<double>(total_[v]);
  return (std::max(count - discount_, 0.0) + discount_ * followers * q) / total;
}

BigramModel count_bigrams(const TokenDataset& train, int64_t vocab_size, std::optional<int32_t> end_of_text,
                          int64_t most_tokens) {
  BigramModel model(vocab_size);
  std::vector<int32_t> run;
  visit_runs(train, end_of_text, most_tokens, [&](std::optional<int32_t> previous, std::span<const int32_t> tokens) {
    run.clear();
    if (previous) run.push_back(*previous);
    run.insert(run.end(), tokens.begin(), tokens.end());
    require_in_vocabulary(train, tokens, vocab_size);
    model.count(run);
  });
  model.finish();
  return model;
}

BigramScore score_bigrams(const BigramModel& model, const TokenDataset& held_out, std::optional<int32_t> end_of_text,
                          const std::function<int64_t(int32_t)>& token_bytes) {
  BigramScore score;
  visit_runs(held_out, end_of_text, INT64_MAX, [&](std::optional<int32_t> previous, std::span<const int32_t> tokens) {
    require_in_vocabulary(held_out, tokens, model.vocab_size());
    for (const int32_t token : tokens) {
      score.bits -= std::log2(model.probability(previous, token));
      score.bytes += token_bytes(token);
      ++score.tokens;
      previous = token;
    }
  });
  return score;
}

}  // namespace witan
