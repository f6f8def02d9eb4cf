#include "witan/data/stats/length_histogram.h"

#include <bit>
#include <cmath>

namespace witan {
namespace {

constexpr int kExactBits = 8;                         // lengths below 2^8 have buckets of their own
constexpr int64_t kExact = int64_t{1} << kExactBits;  // 256
constexpr int64_t kPerDoubling = kExact / 2;          // buckets between a power of two and the next

size_t bucket_of(int64_t length) {
  if (length < kExact) return static_cast<size_t>(length);
  const int shift = std::bit_width(static_cast<uint64_t>(length)) - kExactBits;
  return static_cast<size_t>(kExact + (shift - 1) * kPerDoubling + (length >> shift) - kPerDoubling);
}

int64_t begin_of(size_t bucket) {
  const auto index = static_cast<int64_t>(bucket);
  if (index < kExact) return index;
  const int64_t shift = (index - kExact) / kPerDoubling + 1;
  return (kPerDoubling + (index - kExact) % kPerDoubling) << shift;
}

// The end of the bar that begins here.
int64_t end_of_bar(int64_t begin) {
  if (begin < 2) return begin + 1;
  const bool power = std::has_single_bit(static_cast<uint64_t>(begin));
  return power ? begin + begin / 2 : begin / 3 * 4;
}

}  // namespace

void LengthHistogram::add(int64_t length) {
  const size_t bucket = bucket_of(length);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  ++buckets_[bucket];
  ++count_;
  sum_ += length;
  least_ = std::min(least_, length);
  most_ = std::max(most_, length);
}

int64_t LengthHistogram::quantile(double share) const {
  const auto rank = std::max<int64_t>(static_cast<int64_t>(std::ceil(share * static_cast<double>(count_))), 1);
  int64_t seen = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    seen += buckets_[bucket];
    if (seen >= rank) return std::clamp(begin_of(bucket), least(), most_);
  }
  return 0;
}

std::vector<LengthHistogram::Bar> LengthHistogram::bars() const {
  std::vector<Bar> bars;
  size_t bucket = 0;
  for (int64_t begin = 0; bucket < buckets_.size(); begin = bars.back().end) {
    bars.push_back({begin, end_of_bar(begin), 0});
    for (; bucket < buckets_.size() && begin_of(bucket) < bars.back().end; ++bucket)
      bars.back().count += buckets_[bucket];
  }
  const auto first = std::find_if(bars.begin(), bars.end(), [](const Bar& bar) { return bar.count > 0; });
  return {first, bars.end()};
}

}  // namespace witan
