#include "witan/data/stats/frequent_ngrams.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace witan {

FrequentNgrams::FrequentNgrams(size_t counters) : most_(counters), slots_(2 * counters), texts_(2 * counters) {
  assert(counters >= 2 && std::has_single_bit(counters));
}

size_t FrequentNgrams::slot_of(uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].count != 0 && slots_[at].hash != hash) at = (at + 1) & mask;
  return at;
}

void FrequentNgrams::add(uint64_t hash, std::string_view text) {
  ++added_;
  size_t at = slot_of(hash);
  if (slots_[at].count == 0) {
    if (used_ == most_) {
      prune();
      at = slot_of(hash);
    }
    slots_[at].hash = hash;
    ++used_;
  }
  if (++slots_[at].count == 2) texts_[at] = text;
}

// Frees at least half of the counters.
void FrequentNgrams::prune() {
  std::vector<int64_t> counts;
  counts.reserve(used_);
  for (const Counter& counter : slots_)
    if (counter.count > 0) counts.push_back(counter.count);
  const auto median = counts.begin() + static_cast<std::ptrdiff_t>(counts.size() / 2);
  std::nth_element(counts.begin(), median, counts.end());
  error_ += *median;
  std::vector<Counter> before(slots_.size());
  std::vector<std::string> texts(texts_.size());
  std::swap(before, slots_);
  std::swap(texts, texts_);
  used_ = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].count <= *median) continue;
    const size_t at = slot_of(before[i].hash);
    slots_[at] = {before[i].hash, before[i].count - *median};
    texts_[at] = std::move(texts[i]);
    ++used_;
  }
}

std::vector<FrequentNgram> FrequentNgrams::most_frequent(size_t most) const {
  std::vector<FrequentNgram> found;
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].count > 1 || (slots_[i].count == 1 && error_ > 0 && !texts_[i].empty()))
      found.push_back({texts_[i], slots_[i].count});
  const auto end = found.begin() + static_cast<std::ptrdiff_t>(std::min(most, found.size()));
  std::partial_sort(found.begin(), end, found.end(), [](const FrequentNgram& a, const FrequentNgram& b) {
    return a.count != b.count ? a.count > b.count : a.text < b.text;
  });
  return {found.begin(), end};
}

}  // namespace witan
