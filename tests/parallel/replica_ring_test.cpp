#include "witan/parallel/replica_ring.h"

#include <gtest/gtest.h>

#include <set>

namespace witan {
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

TEST(ReplicaRing, CountsTheWholeCopiesOfAModel) {
  const auto replicas = [](const ParallelConfig& config) {
    return ReplicaRing(Layout(config, static_cast<int>(config.ranks), 8)).replicas();
  };
  EXPECT_EQ(replicas(of(1, 1, 1, 1, 1)), 1);
  EXPECT_EQ(replicas(of(4, 1, 1, 1, 1)), 4);
  EXPECT_EQ(replicas(of(4, 1, 1, 1, 2)), 2) << "two ranks have all experts between them";
  EXPECT_EQ(replicas(of(4, 1, 1, 1, 4)), 1);
  EXPECT_EQ(replicas(of(8, 2, 1, 2, 1)), 2);
  EXPECT_EQ(replicas(of(8, 1, 2, 1, 4)), 2) << "experts are divided by ranks of two samples";
}

// Who stands in for a rank holds the same parameters, and has samples of its own.
TEST(ReplicaRing, RanksStandInForTheirLikes) {
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
    EXPECT_EQ(std::ssize(all), ranks) << "each computes as one other rank";
  }
}

}  // namespace
}  // namespace witan
