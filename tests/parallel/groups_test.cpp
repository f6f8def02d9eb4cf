#include "witan/parallel/groups.h"

#include "support/message_of.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;
using testing::values;

Layout two_by_two() {
  ParallelConfig config;
  config.expert_model_parallel_size = 2;
  return {config, 4, 8};
}

TEST(Groups, EachAxisSumsOverItsRanks) {
  on_ranks(4, [](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, two_by_two(), rank.rank);
    const auto sum_over = [&](Axis axis) {
      const Tensor one = rank.tensor<float>({1}, {static_cast<float>(1 << rank.rank)});
      groups.of(axis).all_reduce(rank.stream, one);
      return static_cast<int>(values(one)[0]);  // bit r: rank r took part
    };
    EXPECT_EQ(sum_over(Axis::replicate), 0b1111);
    EXPECT_EQ(sum_over(Axis::expert), rank.rank < 2 ? 0b0011 : 0b1100);
    EXPECT_EQ(sum_over(Axis::expert_replicate), rank.rank % 2 == 0 ? 0b0101 : 0b1010);
  });
}

TEST(Groups, MetaGroupsKnowTheirRank) {
  const Groups groups = make_meta_groups(two_by_two(), 3);
  EXPECT_EQ(groups.world().size(), 4);
  EXPECT_EQ(groups.world().rank(), 3);
  EXPECT_EQ(groups.of(Axis::expert).size(), 2);
  EXPECT_EQ(groups.of(Axis::expert).rank(), 1);
  EXPECT_EQ(groups.of(Axis::expert_replicate).rank(), 1);
  EXPECT_EQ(groups.of(Axis::tensor).size(), 1) << "an axis that the layout does not use has one rank";
  EXPECT_EQ(groups.all().size(), 4u);
  EXPECT_EQ(test::message_of<Error>([&] {
              groups.over({Axis::expert, Axis::expert_replicate});
            }),
            "this layout has no group for axis expert_replicate x expert");
}

TEST(Groups, OneRankNeedsNoPeers) {
  testing::Rank rank;
  const Groups groups = make_meta_groups(Layout({}, 1, 8), 0);
  const Tensor one = rank.tensor<float>({1}, {3});
  groups.of(Axis::replicate).all_reduce(rank.stream, one);
  EXPECT_EQ(values(one)[0], 3);
}

}  // namespace
}  // namespace witan
