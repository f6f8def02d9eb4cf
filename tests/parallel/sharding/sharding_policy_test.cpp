#include "witan/parallel/sharding/sharding_policy.h"

#include <gmock/gmock.h>

#include <numeric>

#include "parallel/parallel_support.h"
#include "witan/parallel/sharding/shard_plan.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using testing::Rank;
using testing::SmallModel;

Layout sharded(const std::string& strategy, int world, int64_t expert_ranks, int64_t tensor_ranks = 1) {
  ParallelConfig config;
  config.expert_model_parallel_size = expert_ranks;
  config.tensor_model_parallel_size = tensor_ranks;
  config.expert_tensor_parallel_size = 1;
  config.sequence_parallel = tensor_ranks > 1;
  config.use_distributed_optimizer = true;
  config.data_parallel_sharding_strategy = strategy;
  return {config, world, 8};
}

OptimizerConfig with_groups(const std::string& groups) {
  OptimizerConfig config;
  set_field(config.fields(), "optimizer_groups", groups, "--optimizer-groups");
  return config;
}
const char* const kMatrices = R"([{kind = "matrices,experts", shard_by = "matrices"}])";

std::vector<ParameterSpec> specs() {
  return {{.name = "embedding", .shape = {100, 30}, .kind = ParameterKind::embeddings},
          {.name = "layers.0.q", .shape = {40, 30}},
          {.name = "layers.0.k", .shape = {10, 30}, .fused_with_previous = true},
          {.name = "layers.0.norm", .shape = {30}, .weight_decay = false, .kind = ParameterKind::norms},
          {.name = "layers.0.o", .shape = {30, 40}},
          {.name = "layers.0.up", .shape = {8, 20, 30}, .expert = true, .kind = ParameterKind::experts},
          {.name = "layers.0.down", .shape = {8, 30, 20}, .expert = true, .kind = ParameterKind::experts},
          {.name = "layers.1.q", .shape = {40, 30}},
          {.name = "layers.1.o", .shape = {30, 60}}};
}

TEST(ShardingPolicy, EachMatrixHasOneOwnerLongestFirst) {
  Rank rank;
  const Layout layout = sharded("auto", 2, 1);
  SmallModel model(rank.stream, specs(), make_meta_groups(layout, 0));
  const auto owners = matrix_owners(model.parameters, layout, ShardingPolicy(with_groups(kMatrices)));
  const std::vector<int> none;
  // 1800 elements to owner 0, q and k with 1500 to owner 1; then 1200 to 1 (2700), 1200 to 0 (3000).
  EXPECT_EQ(owners[8], std::vector{0});
  EXPECT_EQ(owners[1], std::vector{1});
  EXPECT_EQ(owners[2], std::vector{1}) << "beside q";
  EXPECT_EQ(owners[4], std::vector{1});
  EXPECT_EQ(owners[7], std::vector{0});
  for (const size_t stack : {5, 6}) EXPECT_THAT(owners[stack], ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(owners[0], none);
  EXPECT_EQ(owners[3], none);
}

// SGD without momentum has less to do for a matrix than AdamW.
TEST(ShardingPolicy, CostsAreTheOptimizersOwn) {
  const ShardingPolicy policy(
      with_groups(R"([{match = "slow", shard_by = "matrices"}, {optimizer = "sgd", sgd_momentum = 0, match = "*"}])"));
  const ParameterSpec slow{.name = "slow", .shape = {4, 5}}, fast{.name = "fast", .shape = {4, 5}};
  EXPECT_GT(policy.cost(slow), 2 * policy.cost(fast));
  EXPECT_TRUE(policy.by_matrices(slow));
  EXPECT_FALSE(policy.by_matrices(fast));
  const ParameterSpec stack{.name = "slow", .shape = {8, 4, 5}, .expert = true};
  EXPECT_EQ(policy.cost(stack), policy.cost(slow)) << "of one expert";
}

// Buckets hold parameters of one policy, owners' matrices side by side, and no matrix is cut.
TEST(ShardingPolicy, BucketsCutBetweenMatrices) {
  Rank rank;
  for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"})
    for (const int world : {2, 3, 4}) {
      SCOPED_TRACE(cat(strategy, " on ", world, " ranks"));
      const Layout layout = sharded(strategy, world, world == 4 ? 2 : 1);
      SmallModel model(rank.stream, specs(), make_meta_groups(layout, 0));
      const ShardingPolicy policy(with_groups(kMatrices));
      std::vector<size_t> seen;
      for (const BucketPlan& plan : plan_gradients(model.parameters, layout, 2000, policy)) {
        const bool whole = policy.by_matrices(model.parameters[plan.parameters.front()]->spec());
        int64_t at = 0;
        std::vector<int64_t> borders = {0};
        for (const size_t i : plan.parameters) {
          seen.push_back(i);
          const Parameter& parameter = *model.parameters[i];
          EXPECT_EQ(policy.by_matrices(parameter.spec()), whole) << parameter.name();
          const int64_t matrices = parameter.spec().expert ? parameter.shape()[0] : 1;
          for (int64_t m = 0; m < matrices; ++m) borders.push_back(at += parameter.elements() / matrices);
        }
        EXPECT_EQ(plan.begins.size(), static_cast<size_t>(layout.sharding_ranks(plan.experts)) + 1);
        EXPECT_EQ(plan.begins.back(), at);
        EXPECT_TRUE(std::ranges::is_sorted(plan.begins));
        for (const int64_t begin : plan.begins)
          EXPECT_TRUE(!whole || std::ranges::find(borders, begin) != borders.end());
      }
      std::ranges::sort(seen);
      std::vector<size_t> all(model.parameters.size());
      std::iota(all.begin(), all.end(), size_t{0});
      EXPECT_EQ(seen, all);
    }
}

TEST(ShardingPolicy, OwnersHaveWholeMatrices) {
  Rank rank;
  const Layout layout = sharded("auto", 4, 2);
  SmallModel model(rank.stream, specs(), make_meta_groups(layout, 0));
  const ShardingPolicy policy(with_groups(kMatrices));
  const ShardPlan shard_plan(model.parameters, layout, 0, BucketPlan::kElements, policy);
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& parameter = *model.parameters[i];
    const int64_t matrices = parameter.spec().expert ? parameter.shape()[0] : 1, size = parameter.elements() / matrices;
    int64_t sum = 0;
    for (int owner = 0; owner < shard_plan.sharding_ranks(parameter.spec().expert); ++owner) {
      const auto [first, elements] = shard_plan.range(i, owner);
      sum += elements;
      const int64_t outside = policy.by_matrices(parameter.spec()) ? elements % size + first % size : 0;
      EXPECT_EQ(outside, 0) << parameter.name();
    }
    EXPECT_EQ(sum, parameter.elements());
  }
}

// The other pieces of a matrix that tensor-parallel ranks shard have the same owner, and a group to meet over.
TEST(ShardingPolicy, PiecesOfAMatrixHaveTheSameOwnerAndTheirGroup) {
  const Layout layout = sharded("auto", 4, 1, 2);
  std::vector<ParameterSpec> cut = {{.name = "uneven", .shape = {31, 30}, .tensor_split = {.dim = 0, .uneven = true}},
                                    {.name = "rows", .shape = {40, 30}, .tensor_split = {.dim = 0}},
                                    {.name = "columns", .shape = {30, 44}, .tensor_split = {.dim = 1}},
                                    {.name = "whole", .shape = {30, 30}}};
  const ShardingPolicy policy(with_groups(R"([{match = "*", shard_by = "matrices"}])"));
  testing::on_ranks(4, [&](testing::ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout, rank.rank);
    SmallModel model(rank.stream, cut, groups);
    const ShardPlan shard_plan(model.parameters, layout, rank.rank, BucketPlan::kElements, policy);
    for (const ParameterShard& shard : shard_plan.local_shards(&groups)) {
      EXPECT_EQ(shard.elements, shard.parameter->elements());
      if (shard.parameter->name() == "whole")
        EXPECT_EQ(shard.pieces, nullptr);
      else
        EXPECT_EQ(shard.pieces, &groups.of(Axis::tensor));
    }
    for (const ParameterShard& shard : shard_plan.local_shards()) EXPECT_EQ(shard.pieces, nullptr);
  });
  std::vector<std::vector<std::vector<int>>> found;
  for (int r = 0; r < 4; ++r) {
    Rank rank;
    SmallModel model(rank.stream, cut, make_meta_groups(layout, r));
    found.push_back(matrix_owners(model.parameters, layout, policy));
    EXPECT_EQ(found.back(), found.front()) << "rank " << r;
  }
}

}  // namespace
}  // namespace witan
