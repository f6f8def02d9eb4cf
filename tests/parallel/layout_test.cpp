#include "witan/parallel/layout.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

const ParameterSpec kNorm{.name = "norm.weight", .shape = {32}};
const ParameterSpec kExperts{.name = "experts.down", .shape = {8, 32, 16}, .expert = true};

ParallelConfig expert_ranks(int64_t size) {
  ParallelConfig config;
  config.expert_model_parallel_size = size;
  return config;
}

TEST(Layout, GradientsAreReducedWhereTheyArePartial) {
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

// Ranks that divide a sequence hold the same parameters: they divide the optimizer too, the innermost of owners.
TEST(Layout, OwnersAreAlongSequencesToo) {
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
  EXPECT_EQ(layout.data_rank(5), 2) << "samples are those of ranks that share a sequence";
}

// Two replicas of two hosts with two ranks each, whose experts are divided further among neighbours.
TEST(Layout, HostsOfExpertsAreNeighboursOnTheirAxis) {
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

TEST(Layout, RefusesAsTheConfigDoes) {
  EXPECT_THROW(Layout(expert_ranks(3), 6, 8), ConfigError);
}

}  // namespace
}  // namespace witan
