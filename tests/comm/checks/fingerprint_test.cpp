#include "witan/comm/checks/fingerprint.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;

TEST(Fingerprint, NamesTheRanksThatDiffer) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto group = rank.everyone("replicate");
    const Tensor x = rank.normal({3, 5}, DType::f32, "x");
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, x), std::vector<int>{});
    require_identical(rank.stream, *group, x, "w");

    if (rank.rank == 0) x.data<float>()[14] = std::nextafter(x.data<float>()[14], 9.0f);
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, x), std::vector{0}) << "one bit, on the first rank, is seen";
    EXPECT_EQ(test::message_of<CommError>([&] { require_identical(rank.stream, *group, x, "model.w"); }),
              "axis replicate: model.w must be the same on its 4 ranks, but differs on rank(s) 0 of the group");

    if (rank.rank == 1) x.data<float>()[0] = 1;
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, x), (std::vector{0, 1}));
  });
}

TEST(Fingerprint, SeesShapesAndDtypes) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    EXPECT_EQ(ranks_that_differ(rank.stream, *group,
                                rank.stream.zeros(rank.rank == 2 ? Shape{2, 3} : Shape{3, 2}, DType::f32)),
              std::vector{2});
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, rank.stream.zeros({4}, rank.rank == 1 ? DType::i32 : DType::f32)),
              std::vector{1});
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, rank.stream.zeros({0}, DType::f32)), std::vector<int>{});
    EXPECT_THROW(ranks_that_differ(rank.stream, *group, rank.stream.zeros({3, 2}, DType::f32).transpose(0, 1)),
                 ShapeError);
  });
}

TEST(Fingerprint, TiesGoWithTheLowestRank) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, rank.own_normal({2}, DType::f32, "x")), std::vector{1});
  });
}

TEST(Fingerprint, IsOnlyCountedOnMeta) {
  testing::Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  MetaGroup group(8, 3, "replicate");
  require_identical(meta, group, meta.empty({7}, DType::f32), "w");
  EXPECT_EQ(group.sent().at("all_gather"), 7 * 8.0);
}

}  // namespace
}  // namespace witan
