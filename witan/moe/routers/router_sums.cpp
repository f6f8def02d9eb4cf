#include "witan/moe/routers/router_sums.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/moe/routers/route.h"

namespace witan {
namespace {

bool is_of_micro_batches(const RouterStatistic& statistic) {
  return statistic.derived && statistic.derived->from == RouterStatistic::Derived::From::micro_batch;
}

}  // namespace

RouterSums::RouterSums(StatisticsLayout layout, int64_t blocks) : layout_(std::move(layout)), blocks_(blocks) {
  for (const RouterStatistic& statistic : layout_.declared()) {
    require<ShapeError>(statistic.over_micro_batches != RouterStatistic::Reduce::max, "router statistic ",
                        statistic.name, " is the largest over micro-batches, which cannot be summed");
    if (is_of_micro_batches(statistic)) derived_.push_back(statistic);
  }
  values_.resize(static_cast<size_t>(blocks * values_of_block()));
}

void RouterSums::add(int64_t block, std::span<const double> packed) {
  const auto counts = layout_.find(kExpertCounts, packed);
  if (std::ranges::all_of(counts, [](double count) { return count == 0; })) return;
  auto sum = values_.begin() + block * values_of_block();
  *sum++ += 1;
  for (const double value : packed) *sum++ += value;
  for (const RouterStatistic& statistic : derived_)
    *sum++ += statistic.derived->compute(layout_.find(statistic.derived->source, packed));
}

StepStatistics RouterSums::statistics() const {
  std::vector<std::vector<double>> means;  // packed, of each block: of what is counted the sums
  for (int64_t block = 0; block < blocks_; ++block) {
    const auto sums = sums_of(block);
    if (sums.front() == 0) return {};
    std::vector<double>& packed = means.emplace_back();
    size_t at = 1;
    for (const RouterStatistic& statistic : layout_.declared()) {
      if (statistic.derived) continue;
      const double over = statistic.over_micro_batches == RouterStatistic::Reduce::sum ? 1 : sums.front();
      const int64_t size = statistic.shape == RouterStatistic::Shape::expert ? layout_.experts() : 1;
      for (int64_t i = 0; i < size; ++i) packed.push_back(sums[at++] / over);
    }
  }
  std::vector<StepStatistics::Value> values = StepStatistics(layout_, {means}).values();
  for (size_t i = 0; i < derived_.size(); ++i) {
    const auto value =
        std::ranges::find(values, derived_[i].name, [](const StepStatistics::Value& of) { return of.declared.name; });
    double total = 0;
    for (int64_t block = 0; block < blocks_; ++block) {
      const auto sums = sums_of(block);
      const double mean = sums[static_cast<size_t>(1 + layout_.values()) + i] / sums.front();
      value->layers[static_cast<size_t>(block)] = {mean};
      total += mean;
    }
    value->model = total / static_cast<double>(blocks_);
  }
  return StepStatistics(std::move(values));
}

}  // namespace witan
