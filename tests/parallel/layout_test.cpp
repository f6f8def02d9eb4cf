#include "witan/parallel/layout.h"

#include <gtest/gtest.h>

#include <set>

namespace witan {
namespace {

const ParameterSpec kNorm{.name = "norm.weight", .shape = {32}};
const ParameterSpec kExperts{.name = "experts.down", .shape = {8, 32, 16}, .expert = true};

ParallelConfig expert_ranks(int64_t size) {
  ParallelConfig config;
  config.expert_model_parallel_size = size;
  return config;
}

TEST(Layout, ReducesPartialGradients) {
  const Layout layout(expert_ranks(2), 4, 8);
  EXPECT_EQ(layout.gradient_axes(kNorm), std::vector{Axis::replicate});
  EXPECT_EQ(layout.gradient_axes(kExperts), std::vector{Axis::expert_replicate});
  EXPECT_EQ(layout.mesh().size(Axis::replicate), 4);
  EXPECT_EQ(layout.mesh().size(Axis::expert_replicate), 2);
  EXPECT_EQ(layout.mesh().ranks(3, Axis::expert_replicate), (std::vector{1, 3}));
}

TEST(Layout, RowsCoverEveryExpertOncePerReplica) {
  for (const int world : {1, 2, 4, 8, 16}) {
    const Layout layout({}, world, 8);
    std::vector<int> holders(8);
    for (int rank = 0; rank < world; ++rank) {
      const auto [region, shape, most] = layout.part(kExperts, rank);
      for (int64_t row = 0; row < shape[0]; ++row) ++holders[static_cast<size_t>(region.first() / 512 + row)];
      EXPECT_EQ(layout.part(kNorm, rank).region, Region(0, 32));
    }
    EXPECT_EQ(holders, std::vector<int>(8, layout.mesh().size(Axis::expert_replicate))) << world;
  }
}

// Context-parallel ranks hold the same parameters, so they shard the optimizer too; they are the innermost owners.
TEST(Layout, OptimizerOwnersIncludeContextParallelRanks) {
  ParallelConfig config = expert_ranks(2);
  config.context_parallel_size = 2;
  const Layout whole(config, 8, 8);
  EXPECT_EQ(whole.sharding_ranks(false), 1);
  EXPECT_EQ(whole.sharding_axes(false), Axes{});
  config.use_distributed_optimizer = true;
  config.num_distributed_optimizer_instances = 2;
  const Layout layout(config, 8, 8);
  EXPECT_EQ(layout.sharding_axes(false), (Axes{Axis::shard, Axis::context}));
  EXPECT_EQ(layout.sharding_ranks(false), 4);
  EXPECT_EQ(layout.sharding_ranks(true), 2);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(layout.sharding_rank(false, rank), rank % 4);
  EXPECT_EQ(layout.data_rank(5), 2) << "ranks that share a sequence have the same samples";
}

// Two replicas of two hosts with two ranks each; experts are also sharded over neighbours.
TEST(Layout, HostsOfExpertsAreAdjacentOnTheirAxis) {
  ParallelConfig config = expert_ranks(4);
  config.expert_tensor_parallel_size = 2;
  EXPECT_EQ(Layout(config, 16, 8).expert_ranks_of_host(11), (std::vector{9, 11, 13, 15}));
  EXPECT_EQ(Layout(config, 16, 8).expert_ranks_between_hosts(11), std::vector{11});
  EXPECT_FALSE(Layout(config, 16, 8).has_expert_hosts());
  config.hierarchical_expert_parallel_size = 2;
  const Layout layout(config, 16, 8);
  EXPECT_TRUE(layout.has_expert_hosts());
  EXPECT_EQ(layout.expert_ranks_of_host(11), (std::vector{9, 11}));
  EXPECT_EQ(layout.expert_ranks_between_hosts(11), (std::vector{11, 15}));
  EXPECT_EQ(layout.expert_ranks_of_host(4), (std::vector{4, 6}));
  EXPECT_EQ(layout.expert_ranks_between_hosts(4), (std::vector{0, 4}));
}

TEST(Layout, RefusesInvalidConfigs) {
  EXPECT_THROW(Layout(expert_ranks(3), 6, 8), ConfigError);
}

}  // namespace

namespace {

ParallelConfig of(int ranks, int tensor, int context, int pipeline, int expert) {
  ParallelConfig config;
  config.ranks = ranks;
  config.tensor_model_parallel_size = tensor;
  config.context_parallel_size = context;
  config.pipeline_model_parallel_size = pipeline;
  config.expert_model_parallel_size = expert;
  return config;
}

TEST(ReplicaRing, CountsWholeReplicas) {
  const auto replicas = [](const ParallelConfig& config) {
    return ReplicaRing(Layout(config, static_cast<int>(config.ranks), 8)).replicas();
  };
  EXPECT_EQ(replicas(of(1, 1, 1, 1, 1)), 1);
  EXPECT_EQ(replicas(of(4, 1, 1, 1, 1)), 4);
  EXPECT_EQ(replicas(of(4, 1, 1, 1, 2)), 2) << "two ranks hold all experts together";
  EXPECT_EQ(replicas(of(4, 1, 1, 1, 4)), 1);
  EXPECT_EQ(replicas(of(8, 2, 1, 2, 1)), 2);
  EXPECT_EQ(replicas(of(8, 1, 2, 1, 4)), 2) << "ranks of two samples share the experts";
}

// A rank's replacement holds the same parameters and has different samples.
TEST(ReplicaRing, RanksReplaceOnesWithTheSameParameters) {
  const ParameterSpec dense{.name = "proj", .shape = {32, 16}, .tensor_split = {.dim = 0}};
  const ParameterSpec experts{.name = "experts", .shape = {8, 32, 16}, .expert = true};
  for (const ParallelConfig& config :
       {of(4, 1, 1, 1, 1), of(4, 1, 1, 1, 2), of(8, 2, 1, 2, 1), of(8, 1, 2, 1, 4), of(16, 2, 1, 2, 2)}) {
    const int ranks = static_cast<int>(config.ranks);
    const Layout layout(config, ranks, 8);
    const ReplicaRing ring(layout);
    ASSERT_GT(ring.replicas(), 1);
    std::set<int> all;
    for (int rank = 0; rank < ranks; ++rank) {
      const int next = ring.rank_after(rank, 1);
      all.insert(next);
      EXPECT_NE(layout.data_rank(next), layout.data_rank(rank));
      for (const ParameterSpec& spec : {dense, experts})
        EXPECT_EQ(layout.part(spec, next).region, layout.part(spec, rank).region) << rank;
      for (const Axis axis : {Axis::pipeline, Axis::context, Axis::tensor, Axis::expert, Axis::expert_tensor})
        EXPECT_EQ(layout.mesh().coordinate(next, axis), layout.mesh().coordinate(rank, axis)) << axis;
      EXPECT_EQ(ring.rank_after(next, -1), rank);
      EXPECT_EQ(ring.rank_after(next, 1), ring.rank_after(rank, 2));
      EXPECT_EQ(ring.rank_after(rank, ring.replicas()), rank);
    }
    EXPECT_EQ(std::ssize(all), ranks) << "each replaces one other rank";
  }
}

}  // namespace

}  // namespace witan
