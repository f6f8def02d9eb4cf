#include <algorithm>
#include <limits>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/vocabulary/sampling_rules.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cpu {
namespace {

// The likeliest token of `words`, the lower of equal ones; -1 if none can be chosen.
template <class T>
int32_t likeliest_of_row(const T* logits, int64_t words) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float best = -kInfinity;
  int32_t id = -1;
  for (int64_t v = 0; v < words; ++v) {
    const auto logit = static_cast<float>(logits[v]);
    if (!(logit < kInfinity)) return -1;
    if (logit > best) best = logit, id = static_cast<int32_t>(v);
  }
  return id;
}

template <class T>
int32_t draw_by_id(const T* logits, float top, const SamplingRow& row) {
  constexpr int32_t kBlock = 4096;
  std::vector<uint64_t> sums;
  uint64_t total = 0;
  for (int32_t first = 0; first < row.words; first += kBlock) {
    uint64_t sum = 0;
    for (int32_t v = first; v < std::min(first + kBlock, row.words); ++v)
      sum += rules::kept_weight_of(top - static_cast<float>(logits[v]), row);
    sums.push_back(sum);
    total += sum;
  }
  uint64_t left = rules::drawn_of(total, row.draw);
  int32_t id = 0;
  for (auto sum = sums.begin(); left >= *sum; ++sum, id += kBlock) left -= *sum;
  for (;; ++id) {
    const uint64_t weight = rules::kept_weight_of(top - static_cast<float>(logits[id]), row);
    if (left < weight) return id;
    left -= weight;
  }
}

struct Candidate {
  float logit;
  int32_t id;
};

// The tokens that have a weight; they are sorted by rank as far as they are looked at.
class RankedCandidates {
 public:
  template <class T>
  RankedCandidates(const T* logits, float top, const SamplingRow& row) : top_(top), row_(row) {
    for (int32_t id = 0; id < row.words; ++id) {
      const auto logit = static_cast<float>(logits[id]);
      if (rules::halvings_of(top - logit, row) <= rules::kMostHalvings) all_.push_back({logit, id});
    }
  }

  void keep(size_t count) {
    if (count >= all_.size()) return;
    sort(count);
    all_.resize(count);
    sorted_ = count;
  }
  void erase_below(uint64_t weight) {
    const bool all_sorted = sorted_ == all_.size();
    std::erase_if(all_, [&](const Candidate& candidate) { return weight_of(candidate) < weight; });
    sorted_ = all_sorted ? all_.size() : 0;
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const Candidate& candidate : all_) sum += weight_of(candidate);
    return sum;
  }
  // The first at which the running sum exceeds `target`, which is below the total.
  size_t first_beyond(uint64_t target) {
    for (size_t i = 0;; ++i) {
      if (i == sorted_) sort(std::max<size_t>(256, 8 * sorted_));  // few tokens have most of the weight
      const uint64_t weight = weight_of(all_[i]);
      if (target < weight) return i;
      target -= weight;
    }
  }
  int32_t id(size_t rank) const { return all_[rank].id; }

 private:
  uint64_t weight_of(const Candidate& candidate) const { return rules::weight_of(top_ - candidate.logit, row_); }
  void sort(size_t count) {
    count = std::min(count, all_.size());
    if (count <= sorted_) return;
    const auto at = [&](size_t i) { return all_.begin() + static_cast<std::ptrdiff_t>(i); };
    std::partial_sort(at(sorted_), at(count), all_.end(), [](const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
    sorted_ = count;
  }

  const float top_;
  const SamplingRow& row_;
  std::vector<Candidate> all_;
  size_t sorted_ = 0;
};

template <class T>
int32_t draw_by_rank(const T* logits, float top, const SamplingRow& row) {
  RankedCandidates candidates(logits, top, row);
  if (row.top_k > 0) candidates.keep(static_cast<size_t>(row.top_k));
  if (row.top_p < 1) candidates.keep(candidates.first_beyond(rules::share_of(candidates.total(), row.top_p) - 1) + 1);
  if (row.least_weight > 0) candidates.erase_below(row.least_weight);
  return candidates.id(candidates.first_beyond(rules::drawn_of(candidates.total(), row.draw)));
}

template <class T>
int32_t sample_row(const T* logits, const SamplingRow& row) {
  const int32_t likeliest = likeliest_of_row(logits, row.words);
  if (likeliest < 0 || row.choice == Choice::likeliest) return likeliest;
  const auto top = static_cast<float>(logits[likeliest]);
  return row.choice == Choice::by_id ? draw_by_id(logits, top, row) : draw_by_rank(logits, top, row);
}

}  // namespace

void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words) {
  dispatch_floating(logits.dtype(), [&]<class T>() {
    stream.pool().run(logits.size(0), [&](int64_t t) {
      ids.data<int32_t>()[t] = likeliest_of_row(logits.data<T>() + t * logits.size(1), words);
    });
  });
}

int32_t sample_token(std::span<const float> logits, const SamplingRow& row) {
  return sample_row(logits.data(), row);
}

void sample_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, const Tensor& rows, Choice /*most*/) {
  const auto* const choices = reinterpret_cast<const SamplingRow*>(rows.raw());
  dispatch_floating(logits.dtype(), [&]<class T>() {
    stream.pool().run(logits.size(0), [&](int64_t t) {
      ids.data<int32_t>()[t] = sample_row(logits.data<T>() + t * logits.size(1), choices[t]);
    });
  });
}

}  // namespace witan::kernels::cpu
