#include "witan/moe/statistics.h"

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

using testing::Rank;
using Shape = RouterStatistic::Shape;
using Reduce = RouterStatistic::Reduce;
using Derived = RouterStatistic::Derived;

RouterStatistic of_layer(std::string name, Reduce over_micro_batches, std::optional<Reduce> over_layers) {
  return {.name = std::move(name), .over_micro_batches = over_micro_batches, .over_layers = over_layers};
}

// The values of two micro-batches and two layers are reduced as each statistic declares.
TEST(StepStatistics, AreCombinedAsDeclared) {
  const auto twice = [](std::span<const double> counts) { return 2 * counts[0]; };
  const auto larger = [](std::span<const double> counts) { return std::max(counts[0] - 4, 0.0); };
  const StatisticsLayout layout(
      {of_layer("mean", Reduce::mean, Reduce::mean),
       of_layer("most", Reduce::max, Reduce::max),
       {.name = "counts", .shape = Shape::expert, .over_micro_batches = Reduce::sum, .over_layers = {}},
       {.name = "doubled", .over_layers = Reduce::max, .derived = Derived{"counts", Derived::From::step, twice}},
       {.name = "beyond", .derived = Derived{"counts", Derived::From::micro_batch, larger}}},
      2);
  EXPECT_EQ(layout.values(), 4);
  const StepStatistics step(layout, {{{1, 5, 3, 1}, {2, 6, 4, 0}}, {{3, 4, 6, 0}, {6, 9, 2, 2}}});
  using Rows = std::vector<std::vector<double>>;
  const auto layers = [&](const char* name) { return step.find(name)->layers; };
  EXPECT_EQ(layers("mean"), (Rows{{2}, {4}}));
  EXPECT_EQ(step.model("mean"), 3);
  EXPECT_EQ(layers("most"), (Rows{{5}, {9}}));
  EXPECT_EQ(step.model("most"), 9);
  EXPECT_EQ(layers("counts"), (Rows{{9, 1}, {6, 2}}));
  EXPECT_EQ(step.model("counts"), std::nullopt);
  EXPECT_EQ(step.counts("counts"), (std::vector<std::vector<int64_t>>{{9, 1}, {6, 2}}));
  EXPECT_EQ(layers("doubled"), (Rows{{18}, {12}}));
  EXPECT_EQ(step.model("doubled"), 18);
  EXPECT_EQ(layers("beyond"), (Rows{{1}, {0}})) << "of each micro-batch, then their mean";
  EXPECT_EQ(step.model("beyond"), 0.5);
  EXPECT_EQ(step.find("another"), nullptr);
}

TEST(StepStatistics, DenseModelsHaveNone) {
  const StatisticsLayout layout(router_statistics({}), 0);
  EXPECT_TRUE(StepStatistics(layout, {{}, {}}).empty());
}

TEST(StepStatistics, LoadBalanceCoversTheWholeStep) {
  MoeConfig config;
  config.num_experts = 4;
  config.moe_router_topk = 1;
  config.moe_expert_capacity_factor = 1;
  const StatisticsLayout layout(router_statistics(config), 4);
  const auto packed = [&](std::vector<double> counts) {
    std::vector<double> values(static_cast<size_t>(layout.values() - 4));
    values.insert(values.end(), counts.begin(), counts.end());
    return values;
  };
  // In each micro-batch one expert gets all 8 assignments, but each time another expert.
  const StepStatistics step(layout, {{packed({8, 0, 0, 0})}, {packed({0, 8, 0, 0})}});
  EXPECT_EQ(step.model(kLoadMaxOverMean), 2);
  EXPECT_EQ(step.model("dropped_share"), 0.75) << "capacity is of a micro-batch: 2 of 8";
}

TEST(StatisticsLayout, PacksByNameAndNamesMissingValues) {
  Rank rank;
  const StatisticsLayout layout({of_layer("a", Reduce::mean, {}), {.name = "b", .shape = Shape::expert}}, 3);
  const Tensor a = rank.normal({1}, DType::f32, "a"), b = rank.normal({3}, DType::f32, "b");
  const auto packed = layout.pack({{}, {{"b", b}, {"a", a}}});
  EXPECT_EQ(packed[0].raw(), a.raw());
  EXPECT_EQ(packed[1].raw(), b.raw());
  const auto message = [&](const RouterRecord& record) {
    return test::message_of<ShapeError>([&] { layout.pack(record); });
  };
  EXPECT_EQ(message({{}, {{"a", a}}}), "the router recorded no statistic named b");
  EXPECT_EQ(message({{}, {{"a", a}, {"b", a}}}), "router statistic b has 1 values, and was declared to have 3");
  EXPECT_EQ(message({{}, {{"a", a}, {"b", b}, {"c", a}}}), "the router recorded 3 statistics and declared 2");
}

TEST(RouterStatistics, EveryRouterRecordsItsDeclaredStatistics) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.constant(rank.normal({2, 6, 16}, DType::f64, "x"));
  for (const char* balance : {"aux_loss", "seq_aux_loss", "aux_loss,seq_aux_loss", "quantile_balancing", "none"})
    for (const double factor : {0.0, 0.5}) {
      MoeConfig config;
      config.moe_router_load_balancing_type = balance;
      if (std::string_view(balance) == "aux_loss,seq_aux_loss") config.moe_aux_loss_coeff = "0.01,0.001";
      config.moe_expert_capacity_factor = factor;
      const auto router = make_router({.stream = rank.stream, .dtype = DType::f64, .path = "router"}, config, 16);
      const StatisticsLayout layout(router_statistics(config), config.num_experts);
      int64_t elements = 0;
      for (const Tensor& value : layout.pack(router->forward(tape, x).record)) elements += value.elements();
      EXPECT_EQ(elements, layout.values());
    }
}

}  // namespace
}  // namespace witan
