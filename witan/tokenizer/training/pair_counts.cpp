#include "witan/tokenizer/training/pair_counts.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"

namespace witan {

void PairCounts::add_word(std::string_view word, const std::array<int32_t, 256>& byte_id, int64_t count) {
  if (word.size() < 2) return;
  require<DataError>(symbols_.size() + word.size() < INT32_MAX,
                     "the distinct pre-tokens of this text take 2 GiB or more, too much to train a tokenizer on: train "
                     "it on a part of "
                     "the text");
  const auto begin = static_cast<int32_t>(symbols_.size());
  const auto length = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < length; ++i)
    symbols_.push_back({byte_id[static_cast<uint8_t>(word[static_cast<size_t>(i)])], i == 0 ? -1 : begin + i - 1,
                        i + 1 == length ? -1 : begin + i + 1, static_cast<uint32_t>(word_count_.size())});
  word_count_.push_back(count);
}

void PairCounts::start() {
  for (size_t i = 0; i < symbols_.size(); ++i)
    if (const Symbol& s = symbols_[i]; s.next >= 0) {
      Occurrences& found = pairs_[{s.id, symbols_[static_cast<size_t>(s.next)].id}];
      found.count += word_count_[s.word];
      found.places.push_back(static_cast<int32_t>(i));
    }
  for (const auto& [pair, found] : pairs_) push(pair, found.count);
}

void PairCounts::push(Pair pair, int64_t count) {
  if (count >= min_count_) candidates_.push({count, pair});
}

std::optional<Pair> PairCounts::most_frequent() {
  while (!candidates_.empty()) {
    const Candidate top = candidates_.top();
    candidates_.pop();
    const auto found = pairs_.find(top.pair);
    if (found == pairs_.end()) continue;
    if (found->second.count == top.count) return top.pair;
    // A count that rose was pushed at that time; one that fell is pushed now.
    if (found->second.count < top.count) push(top.pair, found->second.count);
  }
  return std::nullopt;
}

void PairCounts::remove(Pair pair, uint32_t word) {
  pairs_[pair].count -= word_count_[word];
}

void PairCounts::insert(Pair pair, int32_t place) {
  Occurrences& found = pairs_[pair];
  found.count += word_count_[symbols_[static_cast<size_t>(place)].word];
  found.places.push_back(place);
  grown_.push_back(pair);
}

void PairCounts::merge(Pair pair, int32_t result) {
  std::vector<int32_t> places = std::move(pairs_[pair].places);
  // Unsorted only if two merges produced the same token.
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  grown_.clear();
  Symbol* const symbols = symbols_.data();
  for (const int32_t i : places) {
    Symbol& left = symbols[i];
    if (left.id != pair.left || left.next < 0 || symbols[left.next].id != pair.right) continue;
    Symbol& right = symbols[left.next];
    if (left.previous >= 0) {
      const int32_t before = symbols[left.previous].id;
      remove({before, pair.left}, left.word);
      insert({before, result}, left.previous);
    }
    if (right.next >= 0) {
      Symbol& after = symbols[right.next];
      remove({pair.right, after.id}, left.word);
      insert({result, after.id}, i);
      after.previous = i;
    }
    left.next = right.next;
    left.id = result;
    right.id = -1;
  }
  pairs_.erase(pair);
  std::sort(grown_.begin(), grown_.end());
  grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
  for (const Pair& grown : grown_) {
    if (const auto found = pairs_.find(grown); found != pairs_.end()) push(grown, found->second.count);
  }
}

}  // namespace witan
