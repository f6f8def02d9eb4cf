// How long documents are: a histogram of constant size for lengths from 0 to 2^63, whose buckets are whole numbers
// below 256 and narrower than a hundredth of the length above (as in HdrHistogram).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace witan {

class LengthHistogram {
 public:
  void add(int64_t length);  // >= 0

  int64_t count() const { return count_; }
  int64_t sum() const { return sum_; }
  int64_t least() const { return count_ == 0 ? 0 : least_; }
  int64_t most() const { return most_; }
  double mean() const { return static_cast<double>(sum_) / static_cast<double>(std::max<int64_t>(count_, 1)); }
  // The least length that at least this share (0 to 1) of the documents does not exceed: exact below 256, otherwise
  // rounded down by less than a hundredth. 0 without documents.
  int64_t quantile(double share) const;

  // Lengths in [begin, end). Bars begin at 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: two for each doubling. From the first
  // to the last that has any.
  struct Bar {
    int64_t begin = 0, end = 0, count = 0;
    bool operator==(const Bar&) const = default;
  };
  std::vector<Bar> bars() const;

 private:
  std::vector<int64_t> buckets_;
  int64_t count_ = 0, sum_ = 0, least_ = INT64_MAX, most_ = 0;
};

}  // namespace witan
