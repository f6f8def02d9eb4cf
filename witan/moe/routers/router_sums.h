// Router statistics summed over many micro-batches, so that ranks can add them up without keeping single values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "witan/moe/statistics.h"

namespace witan {

class RouterSums {
 public:
  // Sums for `blocks` MoE blocks. Throws ShapeError for a statistic whose micro-batches are reduced by their maximum.
  RouterSums(StatisticsLayout layout, int64_t blocks);

  // Adds a micro-batch's values of a block, as StatisticsLayout packs them. A micro-batch without tokens adds nothing.
  void add(int64_t block, std::span<const double> packed);

  // The sums over all micro-batches so far. Element-wise sums over ranks are the sums over all their micro-batches.
  std::vector<double>& values() { return values_; }

  // Means and sums over the micro-batches; empty without any. Only the order of summation affects the result.
  StepStatistics statistics() const;

 private:
  // The sums of a block: number of micro-batches, their packed values, and statistics derived from each of them.
  int64_t values_of_block() const { return 1 + layout_.values() + static_cast<int64_t>(derived_.size()); }
  std::span<const double> sums_of(int64_t block) const {
    return std::span(values_).subspan(static_cast<size_t>(block * values_of_block()),
                                      static_cast<size_t>(values_of_block()));
  }

  StatisticsLayout layout_;
  int64_t blocks_;
  std::vector<RouterStatistic> derived_;  // of each micro-batch
  std::vector<double> values_;
};

}  // namespace witan
