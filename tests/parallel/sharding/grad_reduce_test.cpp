#include "witan/parallel/sharding/grad_reduce.h"

#include <gtest/gtest.h>

#include "parallel/parallel_support.h"
#include "support/rank.h"
#include "witan/parallel/sharding/grad_buckets.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::small_specs;
using testing::SmallModel;
using testing::ThreadRank;
using testing::values;
using testing::write_summand;

// A bucket of 7 elements, of which one rank's shard has 4 and the other's 3, in two replicas.
struct Four {
  explicit Four(ThreadRank& rank) : groups(make_groups(rank.world, layout(), rank.rank)), reduce(rank.stream, groups) {
    bucket.group = &groups.over({Axis::replicate, Axis::shard, Axis::context, Axis::tensor});
    bucket.shard_group = &groups.of(Axis::shard);
    bucket.replicas = &groups.of(Axis::replicate);
    bucket.begins = {0, 4, 7};
    std::tie(begin, count) = bucket.own_range();
  }
  static Layout layout() {
    ParallelConfig config;
    config.use_distributed_optimizer = true;
    config.num_distributed_optimizer_instances = 2;
    return {config, 4, 0};
  }
  // Element i of a rank's summand is scale (i + 1) 10^rank.
  void write(Stream& stream, int rank, double scale) {
    bucket.levels = stream.empty({1, 1, 7}, DType::f64);
    bucket.buffer = bucket.levels.reshape({7});
    for (int64_t i = 0; i < 7; ++i) bucket.buffer.data<double>()[i] = scale * double(i + 1) * std::pow(10.0, rank);
  }
  void expect_shard(const Tensor& shard, double scale) const {
    ASSERT_EQ(shard.elements(), count);
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(shard.data<double>()[i], scale * double(begin + i + 1) * 1111);
  }
  Groups groups;
  GradReduce reduce;
  GradBucket bucket;
  int64_t begin = 0, count = 0;
};

TEST(GradReduce, GivesEveryRankTheSumsOfItsShard) {
  on_ranks(4, [](ThreadRank& rank) {
    Four four(rank);
    four.write(rank.stream, rank.rank, 1);
    four.reduce.all_reduce(four.bucket);
    four.reduce.finish();
    four.expect_shard(four.bucket.buffer.narrow(0, four.begin, four.count), 1);
    EXPECT_EQ(four.reduce.side(), nullptr) << "a CPU has one stream";
  });
}

TEST(GradReduce, SumsMicroBatchesInTheShardAndReplicasOnce) {
  on_ranks(4, [](ThreadRank& rank) {
    Four four(rank);
    four.bucket.shard = rank.stream.empty({four.count}, DType::f64);
    for (int step = 0; step < 2; ++step) {
      const double sent =
          four.bucket.replicas->sent().contains("all_reduce") ? four.bucket.replicas->sent().at("all_reduce") : 0;
      for (int index = 0; index < 3; ++index) {
        four.write(rank.stream, rank.rank, std::pow(2.0, index));
        four.reduce.reduce_into_shard(four.bucket, {.tree = false, .first = index == 0, .last = index == 2});
        EXPECT_FALSE(four.bucket.levels.defined()) << "the full gradient is freed";
      }
      four.expect_shard(four.bucket.shard, 7);
      EXPECT_EQ(four.bucket.replicas->sent().at("all_reduce"), sent + double(four.count) * 8);
    }
  });
}

TEST(GradReduce, OverwritesTheShardWithATreesSum) {
  on_ranks(4, [](ThreadRank& rank) {
    Four four(rank);
    four.bucket.shard = rank.stream.empty({four.count}, DType::f64);
    std::ranges::fill(four.bucket.shard.span<double>(), NAN);
    four.write(rank.stream, rank.rank, 3);
    four.reduce.reduce_into_shard(four.bucket, {.tree = true, .first = false, .last = true});
    four.expect_shard(four.bucket.shard, 3);
  });
}

Layout sharded_layout(int world, const char* strategy) {
  ParallelConfig config;
  config.expert_model_parallel_size = 1;
  config.data_parallel_sharding_strategy = strategy;
  return {config, world, 8};
}

// Every micro-batch is summed over ranks into the rank's shard; between micro-batches there is no full gradient.
TEST(ShardedGradients, AreSummedInShards) {
  for (const char* strategy : {"no_shard", "optim_grads"})
    for (const Summation summation : {Summation::in_place, Summation::tree})
      on_ranks(2, [&](ThreadRank& rank) {
        const Groups groups = make_groups(rank.world, sharded_layout(2, strategy), rank.rank);
        SmallModel model(rank.stream, small_specs(), groups);
        GradientBuckets buckets(rank.stream, model.parameters, groups, {.summation = summation, .micro_batches = 2});
        const bool sharded = groups.layout().shards_gradients(false);
        for (int64_t index = 0; index < 2; ++index) {
          buckets.begin_micro_batch(index);
          for (Parameter* parameter : model.parameters) {
            parameter->prepare_gradient();  // like the tape
            write_summand(*parameter, 2 * rank.rank + static_cast<int>(index));
            parameter->on_gradient_ready();
          }
          if (sharded && summation == Summation::in_place) {
            EXPECT_EQ(rank.stream.arena().live(MemoryTag::communication), 0);
          }
        }
        buckets.finish_step();
        EXPECT_EQ(rank.stream.arena().live(MemoryTag::communication), 0);
        const ShardPlan shard_plan(model.parameters, groups.layout(), rank.rank);
        for (const auto& [parameter, first, elements, pieces] : shard_plan.local_shards()) {
          const auto sums = values(parameter->gradient_shard(first, elements));
          for (int64_t i = 0; i < elements; ++i) {
            double sum = 0;
            for (int summand = 0; summand < 4; ++summand)
              sum += testing::summand(parameter->name(), summand, parameter->region().global(first + i));
            ASSERT_NEAR(sums[static_cast<size_t>(i)], sum, 1e-5) << parameter->name();
          }
        }
      });
}

}  // namespace

namespace {

using testing::Rank;

// The tree over micro-batches [first, first + count): the largest power of two of them, plus the rest.
double tree(const std::vector<double>& found, int64_t first, int64_t count) {
  if (count == 1) return found[static_cast<size_t>(first)];
  int64_t half = 1;
  while (2 * half < count) half *= 2;
  return tree(found, first, half) + tree(found, first + half, count - half);
}

// Summands of very different sizes: another order of additions gives other bits.
std::vector<double> summands(int64_t count) {
  std::vector<double> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(std::pow(-3.7, static_cast<double>(i * i % 11)) + 1e-3);
  return all;
}

TEST(GradTree, LevelsAreTheDigitsOfACounter) {
  EXPECT_EQ(grad_tree::level_of(0), 0);
  EXPECT_EQ(grad_tree::level_of(1), 1);
  EXPECT_EQ(grad_tree::level_of(2), 1);
  EXPECT_EQ(grad_tree::level_of(7), 3);
  EXPECT_EQ(grad_tree::level_count(1), 1);
  EXPECT_EQ(grad_tree::level_count(2), 2);
  EXPECT_EQ(grad_tree::level_count(4), 3);
  EXPECT_EQ(grad_tree::level_count(5), 3);
}

TEST(GradTree, SumsMicroBatchesInTheTreeOfTheirNumbers) {
  Rank rank;
  for (int64_t count = 1; count <= 17; ++count) {
    const std::vector<double> found = summands(count);
    const Tensor levels = rank.stream.empty({grad_tree::level_count(count), 1}, DType::f64);
    for (int64_t i = 0; i < count; ++i) {
      levels.data<double>()[grad_tree::level_of(i)] = found[static_cast<size_t>(i)];
      grad_tree::sum_levels(rank.stream, levels, i, count);
    }
    EXPECT_EQ(levels.data<double>()[0], tree(found, 0, count)) << count;
  }
}

// The meta device may skip all micro-batches between the first and the last.
TEST(GradTree, MetaDeviceCountsAllAdditions) {
  for (int64_t count = 1; count <= 17; ++count) {
    ThreadPool pool(1);
    Stream stream({Device::Kind::meta}, Arena::meta(), pool);
    const Tensor levels = stream.empty({grad_tree::level_count(count), 3}, DType::f32);
    grad_tree::sum_levels(stream, levels, 0, count);
    if (count > 1) grad_tree::sum_levels(stream, levels, count - 1, count);
    EXPECT_EQ(stream.flops(), static_cast<double>(3 * (count - 1))) << count;
    Rank rank;
    const Tensor real = rank.stream.zeros({grad_tree::level_count(count), 3}, DType::f32);
    for (int64_t i = 0; i < count; ++i) grad_tree::sum_levels(rank.stream, real, i, count);
    EXPECT_EQ(rank.stream.flops(), stream.flops()) << count;
  }
}

TEST(GradTree, SumsSourcesInTheSameTree) {
  Rank rank;
  for (const int64_t count : {1, 2, 4, 8}) {
    const std::vector<double> found = summands(count);
    const Tensor sources = rank.tensor<double>({count, 1}, found);
    grad_tree::sum_sources(rank.stream, sources);
    EXPECT_EQ(sources.data<double>()[0], tree(found, 0, count)) << count;
  }
}

}  // namespace

namespace {

using testing::on_ranks;
using testing::ThreadRank;
using testing::values;

GradBucket bucket_of(const Groups& groups) {
  GradBucket bucket;
  bucket.shard_group = &groups.over(groups.layout().sharding_axes(false));
  bucket.begins = {0, 3};
  bucket.embedding = &groups.embedding();
  return bucket;
}

// Both gradients on one rank: the second source is the head's.
TEST(TiedGradients, AreSummedIntoTheFirstOfTwoSources) {
  testing::Rank rank;
  const Groups groups = make_meta_groups(testing::layout_of(1, 1), 0);
  GradBucket bucket = bucket_of(groups);
  bucket.head_apart = true;
  bucket.sources = 2;
  bucket.levels = rank.tensor<double>({1, 2, 3}, {1, 2, 3, 10, 20, 30});
  bucket.buffer = bucket.levels.reshape({6}).narrow(0, 0, 3);
  EXPECT_EQ(values(tied_gradients::head_buffer(bucket)), (std::vector<double>{10, 20, 30}));
  tied_gradients::sum(rank.stream, bucket);
  EXPECT_EQ(values(bucket.buffer), (std::vector<double>{11, 22, 33}));
}

// On the first and the last stage of a pipeline; the stage between them has no copy.
TEST(TiedGradients, AreSummedAcrossTwoStages) {
  ParallelConfig config;
  config.pipeline_model_parallel_size = 3;
  const Layout layout(config, 3, 0);
  on_ranks(3, [&](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout, rank.rank);
    GradBucket bucket = bucket_of(groups);
    if (rank.rank == 1) bucket.embedding = nullptr;
    const double found = rank.rank == 0 ? 1 : 10;
    bucket.levels = rank.tensor<double>({1, 1, 3}, {found, 2 * found, 3 * found});
    bucket.buffer = bucket.levels.reshape({3});
    tied_gradients::sum(rank.stream, bucket);
    const double sum = rank.rank == 1 ? 10 : 11;
    EXPECT_EQ(values(bucket.buffer), (std::vector<double>{sum, 2 * sum, 3 * sum}));
  });
}

}  // namespace

}  // namespace witan
