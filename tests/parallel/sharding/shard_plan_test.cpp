#include "witan/parallel/sharding/shard_plan.h"

#include <gmock/gmock.h>

#include <array>
#include <numeric>

#include "parallel/parallel_support.h"
#include "support/message_of.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/parallel/global_norm.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/unit_store.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::SmallModel;
using testing::ThreadRank;

Layout divided(int world, int64_t expert_ranks, int64_t instances) {
  ParallelConfig config;
  config.expert_model_parallel_size = expert_ranks;
  config.use_distributed_optimizer = true;
  config.num_distributed_optimizer_instances = instances;
  return {config, world, 8};
}

// Some parameters have several chunks, some few elements.
std::vector<ParameterSpec> large_specs() {
  return {{.name = "a", .shape = {5, 60000}},
          {.name = "norm", .shape = {3}},
          {.name = "experts", .shape = {8, 300, 301}, .expert = true},
          {.name = "b", .shape = {700, 211}}};
}

std::vector<int64_t> sizes_of(const std::vector<int64_t>& elements) {
  std::vector<int64_t> sizes;
  for (const auto& bucket : plan_buckets(elements, BucketPlan::kElements)) {
    sizes.push_back(0);
    for (const size_t i : bucket) sizes.back() += elements[i];
  }
  return sizes;
}

// 24 layers of hidden size 512, 64 experts of 1792 (SwiGLU), vocabulary 128256, untied: the sizes that Megatron-LM
// logs.
TEST(PlanBuckets, MatchesMegatronLm) {
  constexpr int64_t D = 512, F = 1792, V = 128256, layers = 24, experts = 64;
  std::vector<int64_t> others = {V * D};
  for (int64_t layer = 0; layer < layers; ++layer)
    others.insert(others.end(), {D, D * D + 2 * 128 * D, D * D, D, experts * D});  // norm, qkv, out, norm, router
  others.insert(others.end(), {D, V * D});
  EXPECT_EQ(sizes_of(others), (std::vector<int64_t>{65'667'072, 82'207'232}));

  const auto grouped = [&](int64_t expert_ranks) {
    std::vector<int64_t> elements;
    for (int64_t layer = 0; layer < layers; ++layer)
      elements.insert(elements.end(), {experts / expert_ranks * 2 * F * D, experts / expert_ranks * D * F});
    return sizes_of(elements);
  };
  EXPECT_EQ(grouped(4), std::vector<int64_t>(24, 44'040'192));
  EXPECT_EQ(grouped(8), std::vector<int64_t>(12, 44'040'192));

  std::vector<int64_t> sequential;
  for (int64_t i = 0; i < layers * experts / 4; ++i) sequential.insert(sequential.end(), {2 * F * D, D * F});
  std::vector<int64_t> expected(25, 41'287'680);
  expected.push_back(24'772'608);
  EXPECT_EQ(sizes_of(sequential), expected);
}

TEST(PlanBuckets, HandlesEdgeCases) {
  using Buckets = std::vector<std::vector<size_t>>;
  EXPECT_EQ(plan_buckets({}, 10), Buckets{});
  EXPECT_EQ(plan_buckets(std::vector<int64_t>{3}, 10), (Buckets{{0}}));
  EXPECT_EQ(plan_buckets(std::vector<int64_t>{3, 9, 1, 10}, 10), (Buckets{{3}, {2, 1}, {0}}));
  EXPECT_EQ(plan_buckets(std::vector<int64_t>{5, 5}, 1), (Buckets{{1}, {0}}));
}

TEST(ShardPlan, EveryElementHasOneOwnerAndChunksStayWhole) {
  testing::Rank rank;
  for (const auto& [world, experts] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {3, 1}, {4, 2}, {8, 2}, {16, 1}}) {
    const Layout layout = divided(world, experts, 1);
    const Groups groups = make_meta_groups(layout, 0);
    SmallModel model(rank.stream, large_specs(), groups);
    const ShardPlan shard_plan(model.parameters, layout, 0, 200'000);
    for (size_t i = 0; i < model.parameters.size(); ++i) {
      const Parameter& parameter = *model.parameters[i];
      const bool expert = parameter.spec().expert;
      const int64_t piece = parameter.elements() / (expert ? parameter.value().size(0) : 1);
      int64_t at = 0;
      for (int owner = 0; owner < shard_plan.sharding_ranks(expert); ++owner) {
        const auto [first, elements] = shard_plan.range(i, owner);
        if (elements == 0) continue;
        EXPECT_EQ(first, at) << parameter.name() << " of owner " << owner << " in " << world;
        EXPECT_EQ(first % piece % kernels::kChunkElements, 0);
        at += elements;
      }
      EXPECT_EQ(at, parameter.elements());
    }
  }
}

TEST(ShardPlan, IsAsEvenAsChunksAllow) {
  testing::Rank rank;
  const Layout layout = divided(4, 1, 1);
  SmallModel model(rank.stream, {{.name = "w", .shape = {40, kernels::kChunkElements}}}, make_meta_groups(layout, 0));
  for (int owner = 0; owner < 4; ++owner)
    EXPECT_EQ(ShardPlan(model.parameters, layout, owner).range(0, owner).elements, 10 * kernels::kChunkElements);
  const Layout three = divided(3, 1, 1);
  for (int owner = 0; owner < 3; ++owner)
    EXPECT_NEAR(static_cast<double>(ShardPlan(model.parameters, three, owner).local_shards()[0].elements),
                40.0 / 3 * kernels::kChunkElements, kernels::kChunkElements);
}

// One tensor-parallel rank has 65536 elements, one chunk, the other 65568, two chunks: both use the same boundaries as
// far as they have elements.
TEST(ShardPlan, UnevenTensorRanksUseTheSameBoundaries) {
  ParallelConfig config;
  config.tensor_model_parallel_size = 2;
  config.use_distributed_optimizer = true;
  for (const int owners : {2, 3}) {
    const Layout layout(config, 2 * owners, 0);
    testing::Rank rank;
    const std::vector<ParameterSpec> specs = {
        {.name = "words", .shape = {4097, 32}, .tensor_split = {.dim = 0, .uneven = true}},
        {.name = "norm", .shape = {3}},
        {.name = "b", .shape = {700, 211}}};
    SmallModel less(rank.stream, specs, make_meta_groups(layout, 0)),
        more(rank.stream, specs, make_meta_groups(layout, 1));
    EXPECT_EQ(less.parameters[0]->elements(), 65536);
    EXPECT_EQ(more.parameters[0]->elements(), 65568);
    const ShardPlan of_less(less.parameters, layout, 0), of_more(more.parameters, layout, 1);
    int64_t sum = 0;
    for (int owner = 0; owner < owners; ++owner) {
      for (size_t i = 0; i < specs.size(); ++i) {
        const auto [first, elements] = of_more.range(i, owner);
        EXPECT_EQ(of_more.most_of_range(i, owner).elements, elements);
        EXPECT_EQ(of_less.most_of_range(i, owner).first, first);
        EXPECT_EQ(of_less.most_of_range(i, owner).elements, elements);
        EXPECT_EQ(of_less.range(i, owner).first, std::min(first, less.parameters[i]->elements()));
        if (i == 0) continue;
        EXPECT_EQ(of_less.range(i, owner).elements, elements);
      }
      sum += of_less.range(0, owner).elements;
    }
    EXPECT_EQ(sum, 65536);
    EXPECT_EQ(norm_rows(of_less, layout)[0].by_owner, norm_rows(of_more, layout)[0].by_owner);
  }
}

// Parameters that fill a bucket on one rank and nearly fill it on the other.
TEST(ShardPlan, UnevenTensorRanksHaveTheSameBuckets) {
  ParallelConfig config;
  config.tensor_model_parallel_size = 2;
  const Layout layout(config, 4, 0);
  testing::Rank rank;
  const std::vector<ParameterSpec> specs = {
      {.name = "b", .shape = {700, 211}},
      {.name = "words", .shape = {4097, 32}, .tensor_split = {.dim = 0, .uneven = true}}};
  std::vector<std::vector<std::vector<size_t>>> buckets;
  for (const int of : {0, 1}) {
    const SmallModel model(rank.stream, specs, make_meta_groups(layout, of));
    auto& members = buckets.emplace_back();
    for (const BucketPlan& plan : plan_gradients(model.parameters, layout, 65550)) members.push_back(plan.parameters);
  }
  EXPECT_EQ(buckets[0], (std::vector<std::vector<size_t>>{{1}, {0}}));
  EXPECT_EQ(buckets[0], buckets[1]);
}

// Gradients are summed on their owners, and values return to all ranks.
TEST(ShardPlan, OwnersGetSumsAndAllRanksGetValues) {
  for (const auto& [world, experts, instances] :
       std::vector<std::array<int, 3>>{{2, 1, 1}, {4, 2, 1}, {4, 1, 2}, {8, 2, 2}, {4, 4, 1}})
    on_ranks(world, [&, world = world, experts = experts, instances = instances](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, divided(world, experts, instances), rank.rank);
      SmallModel model(rank.stream, large_specs(), groups);
      const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank(), 200'000);
      GradientBuckets buckets(rank.stream, model.parameters, groups, {.bucket_elements = 200'000});
      for (Parameter* parameter : model.parameters) testing::write_summand(*parameter, rank.rank);
      buckets.finish_step();
      for (const auto& [parameter, first, elements, pieces] : shard_plan.local_shards())
        for (int64_t i = first; i < first + elements; i += 997) {
          double sum = 0;
          for (const int peer :
               groups.layout().mesh().ranks(rank.rank, groups.layout().gradient_axes(parameter->spec())))
            sum += testing::summand(parameter->name(), peer, parameter->region().global(i));
          ASSERT_NEAR(parameter->gradient().data<float>()[i], sum, 1e-5) << parameter->name() << " " << i;
        }
      for (Parameter* parameter : model.parameters) std::ranges::fill(parameter->value().span<float>(), -1.0f);
      for (const auto& [parameter, first, elements, pieces] : shard_plan.local_shards())
        for (int64_t i = first; i < first + elements; ++i)
          parameter->value().data<float>()[i] = static_cast<float>(parameter->region().global(i));
      UnitStore units(rank.stream, model.units(), shard_plan, groups, {});
      units.publish();
      const UnitReading reading(&units, 0);
      for (const Parameter* parameter : model.parameters)
        for (int64_t i = 0; i < parameter->elements(); ++i)
          ASSERT_EQ(parameter->value().data<float>()[i], static_cast<float>(parameter->region().global(i)))
              << parameter->name();
    });
}

TEST(ShardPlan, WithoutADistributedOptimizerEveryRankOwnsAll) {
  testing::Rank rank;
  const Groups groups = make_meta_groups(testing::layout_of(4, 2), 1);
  SmallModel model(rank.stream, testing::small_specs(), groups);
  const auto shards = ShardPlan(model.parameters, groups.layout(), 1).local_shards();
  ASSERT_EQ(shards.size(), model.parameters.size());
  for (size_t i = 0; i < shards.size(); ++i) EXPECT_EQ(shards[i].elements, model.parameters[i]->elements());
}

}  // namespace

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

TEST(ShardingPolicy, AssignsMatricesLargestFirst) {
  Rank rank;
  const Layout layout = sharded("auto", 2, 1);
  SmallModel model(rank.stream, specs(), make_meta_groups(layout, 0));
  const auto owners = matrix_owners(model.parameters, layout, ShardingPolicy(with_groups(kMatrices)));
  const std::vector<int> none;
  // 1800 elements to owner 0, q and k with 1500 to owner 1; then 1200 to 1 (2700), 1200 to 0 (3000).
  EXPECT_EQ(owners[8], std::vector{0});
  EXPECT_EQ(owners[1], std::vector{1});
  EXPECT_EQ(owners[2], std::vector{1}) << "together with q";
  EXPECT_EQ(owners[4], std::vector{1});
  EXPECT_EQ(owners[7], std::vector{0});
  for (const size_t stack : {5, 6}) EXPECT_THAT(owners[stack], ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(owners[0], none);
  EXPECT_EQ(owners[3], none);
}

// SGD without momentum does less work per matrix than AdamW.
TEST(ShardingPolicy, CostsDependOnTheOptimizer) {
  const ShardingPolicy policy(
      with_groups(R"([{match = "slow", shard_by = "matrices"}, {optimizer = "sgd", sgd_momentum = 0, match = "*"}])"));
  const ParameterSpec slow{.name = "slow", .shape = {4, 5}}, fast{.name = "fast", .shape = {4, 5}};
  EXPECT_GT(policy.cost(slow), 2 * policy.cost(fast));
  EXPECT_TRUE(policy.by_matrices(slow));
  EXPECT_FALSE(policy.by_matrices(fast));
  const ParameterSpec stack{.name = "slow", .shape = {8, 4, 5}, .expert = true};
  EXPECT_EQ(policy.cost(stack), policy.cost(slow)) << "the cost of one expert";
}

// Buckets hold parameters of one policy and keep each owner's matrices adjacent and whole.
TEST(ShardingPolicy, BucketsKeepMatricesWhole) {
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

// All pieces of a matrix that tensor-parallel ranks shard have the same owner, and a group that connects them.
TEST(ShardingPolicy, PiecesOfAMatrixHaveTheSameOwnerAndGroup) {
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
