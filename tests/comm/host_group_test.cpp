#include "witan/comm/host_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "support/message_of.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;
using Kind = Collective::Kind;

TEST(HostGroup, AgreesWithoutMovingData) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const Tensor x = rank.tensor<float>({2}, {1, 2}), y = rank.tensor<float>({6}, {0, 0, 0, 0, 0, 0});
    group->agree({Kind::all_reduce, x, x, {}, {}});
    group->agree({Kind::all_gather, y, x, {}, {}});
    if (rank.rank == 0) group->agree({Kind::send, {}, x, {}, {}, Reduce::sum, 2});
    if (rank.rank == 2) group->agree({Kind::recv, y.narrow(0, 0, 2), {}, {}, {}, Reduce::sum, 0});
    group->agree({Kind::barrier, {}, {}, {}, {}});
    EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2}));
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(6));
    EXPECT_EQ(group->world_rank(2), 2);
    EXPECT_EQ(group->deadline().seconds, 20);
    EXPECT_TRUE(group->one_process());
  });
}

TEST(HostGroup, WaitsForTheDeadlineOfAScope) {
  ThreadWorld world(2, {.deadline_seconds = 0.2});
  testing::on_ranks(world, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const DeadlineScope patience(*group, {20, {}});
    const auto late = [&](int who) {
      if (rank.rank == who) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    };
    late(1);
    group->barrier(rank.stream);
    const Tensor x = rank.tensor<float>({1}, {2});
    late(0);
    rank.rank == 0 ? group->send(rank.stream, x, 1) : group->recv(rank.stream, x, 0);
  });
  // After a scope the world's deadline applies again, and another scope uses its own message.
  const auto said = [&](const CallDeadline& deadline, Kind kind) {
    return test::message_of<CommError>([&] {
      testing::on_ranks(world, [&](ThreadRank& rank) {
        const auto group = rank.everyone();
        { const DeadlineScope past(*group, {20, {}}); }
        const DeadlineScope patience(*group, deadline);
        if (rank.rank == 1) testing::until_failed(*group);
        if (kind == Kind::barrier || rank.rank == 1) return group->barrier(rank.stream);
        group->recv(rank.stream, rank.tensor<float>({1}, {2}), 1);
      });
    });
  };
  const CallDeadline own{0.3, [](const std::string& who) { return "no news of " + who; }};
  EXPECT_EQ(said(own, Kind::barrier), "rank 0: no news of rank 1");
  EXPECT_EQ(said(own, Kind::recv), "rank 0: no news of rank 1");
  EXPECT_NE(said({0.3, {}}, Kind::barrier).find("rank 1 did not reach barrier within 0.3 s"), std::string::npos);
}

TEST(HostGroup, NamesRanksThatDisagree) {
  const auto said = [](const auto& call_of) {
    return test::message_of<CommError>(
        [&] { on_ranks(2, [&](ThreadRank& rank) { rank.everyone()->agree(call_of(rank)); }); });
  };
  const auto all_reduce = [](ThreadRank& rank) -> Collective {
    const Tensor x = rank.stream.zeros({rank.rank + 3}, DType::f32);
    return {Kind::all_reduce, x, x, {}, {}};
  };
  const auto counts = [](ThreadRank& rank) -> Collective {
    const Tensor x = rank.stream.zeros({4, 2}, DType::f32);
    return {Kind::all_to_all, x, x, rank.tensor<int64_t>({2}, {1, 1}), rank.tensor<int64_t>({2}, {1, 2 - rank.rank})};
  };
  EXPECT_NE(said(all_reduce).find("rank 1 calls all_reduce float32 [4], expected as on rank 0: all_reduce float32 [3]"),
            std::string::npos);
  EXPECT_NE(said(counts).find("all_to_all: rank 0 sends 2 rows to rank 1, which expects 1"), std::string::npos);
}

TEST(Failure, SetsTheWordsThatDevicesPoll) {
  const auto early = std::make_shared<std::atomic<uint32_t>>(0), late = std::make_shared<std::atomic<uint32_t>>(0);
  Failure failure;
  failure.watch(early);
  failure.watch(std::make_shared<std::atomic<uint32_t>>(0));  // destroyed before the failure
  EXPECT_FALSE(failure.raised());
  failure.raise();
  failure.watch(late);
  EXPECT_TRUE(failure.raised());
  EXPECT_EQ(early->load(), 1u);
  EXPECT_EQ(late->load(), 1u);
}

TEST(Failure, BelongsToOneRunOfAWorld) {
  ThreadWorld world(2, {.deadline_seconds = 20});
  const auto word = std::make_shared<std::atomic<uint32_t>>(0);
  std::shared_ptr<Failure> first;
  EXPECT_THROW(testing::on_ranks(world,
                                 [&](ThreadRank& rank) {
                                   const auto group = rank.everyone();
                                   if (rank.rank == 0) (first = group->failure())->watch(word);
                                   group->barrier(rank.stream);
                                   if (rank.rank == 1) throw DataError("no text");
                                   group->barrier(rank.stream);
                                 }),
               DataError);
  EXPECT_EQ(word->load(), 1u);
  EXPECT_TRUE(first->raised());
  testing::on_ranks(world, [](ThreadRank& rank) { EXPECT_FALSE(rank.everyone()->failure()->raised()); });
}

TEST(RankList, NamesRanks) {
  EXPECT_EQ(rank_list(std::vector{3}), "rank 3");
  EXPECT_EQ(rank_list(std::vector{1, 2, 5}), "ranks 1, 2, 5");
}

TEST(RankList, ShortensLongLists) {
  std::vector<int> many(64);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(rank_list(many), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 48 more");
}

}  // namespace
}  // namespace witan
