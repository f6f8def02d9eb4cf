#include "witan/moe/routers/router_sums.h"

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/moe/routers/capacity.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

MoeConfig with_capacity() {
  MoeConfig config;
  config.num_experts = 4;
  config.moe_router_topk = 1;
  config.moe_expert_capacity_factor = 1;
  return config;
}

// Packed values of the statistics of with_capacity(): two losses, the entropy, four counts.
std::vector<double> packed(double loss, std::vector<double> counts) {
  std::vector<double> values = {loss, 2 * loss, 3 * loss};
  values.insert(values.end(), counts.begin(), counts.end());
  return values;
}

// The sums equal those of a step of the same micro-batches, whichever rank has which of them.
TEST(RouterSums, MatchAStepOfTheSameMicroBatches) {
  const StatisticsLayout layout(router_statistics(with_capacity()), 4);
  ASSERT_EQ(layout.values(), 7);
  const std::vector<std::vector<std::vector<double>>> seen = {{packed(1, {8, 0, 0, 0}), packed(3, {2, 2, 2, 2})},
                                                              {packed(2, {0, 8, 0, 0}), packed(5, {1, 3, 2, 2})},
                                                              {packed(0.5, {1, 1, 1, 1}), packed(1.5, {4, 0, 0, 0})}};
  const StepStatistics expected(layout, seen);
  for (const size_t first : {0, 1, 3}) {
    RouterSums one(layout, 2), other(layout, 2);
    for (size_t m = 0; m < seen.size(); ++m)
      for (size_t block = 0; block < 2; ++block)
        (m < first ? one : other).add(static_cast<int64_t>(block), seen[m][block]);
    for (size_t i = 0; i < one.values().size(); ++i) one.values()[i] += other.values()[i];
    const StepStatistics found = one.statistics();
    ASSERT_EQ(found.values().size(), expected.values().size());
    for (const StepStatistics::Value& value : expected.values()) {
      const StepStatistics::Value& same = *found.find(value.declared.name);
      EXPECT_EQ(same.layers, value.layers) << value.declared.name;
      ASSERT_EQ(same.model.has_value(), value.model.has_value()) << value.declared.name;
      EXPECT_DOUBLE_EQ(same.model.value_or(0), value.model.value_or(0)) << value.declared.name;
    }
  }
  EXPECT_GT(expected.model(kDroppedShare).value(), 0.3) << "of each micro-batch: together they would fit better";
}

// Whole micro-batches of padding, whose losses have no tokens.
TEST(RouterSums, MicroBatchesWithoutTokensAddNothing) {
  const StatisticsLayout layout(router_statistics(with_capacity()), 4);
  RouterSums sums(layout, 1);
  sums.add(0, packed(std::nan(""), {0, 0, 0, 0}));
  EXPECT_TRUE(sums.statistics().empty());
  sums.add(0, packed(2, {1, 1, 1, 1}));
  sums.add(0, packed(std::nan(""), {0, 0, 0, 0}));
  EXPECT_EQ(sums.statistics().model("load_balancing_loss"), 2);
}

TEST(RouterSums, RefuseStatisticsThatCannotBeSummed) {
  EXPECT_EQ(test::message_of<ShapeError>([] {
              RouterSums(StatisticsLayout({{.name = "most", .over_micro_batches = RouterStatistic::Reduce::max}}, 2),
                         1);
            }),
            "router statistic most is the largest over micro-batches, which cannot be summed");
}

}  // namespace
}  // namespace witan
