#include "witan/parallel/sharding/tied_gradients.h"

#include "parallel/parallel_support.h"

namespace witan {
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

// Both on one rank: the second source is the head's.
TEST(TiedGradients, MeetInTheFirstOfTwoSources) {
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

// On the first and the last stage of a pipeline; the stage between them has none.
TEST(TiedGradients, OfTwoStagesAreSummedBetweenThem) {
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
