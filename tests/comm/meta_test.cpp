#include "witan/comm/meta.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/thread_peers.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;

// One call of each kind, with tensors of a stream.
void call_everything(Stream& stream, Group& group) {
  const int n = group.size();
  const auto tensor = [&](int64_t rows) { return stream.zeros({rows, 6}, DType::f32); };
  const Tensor counts = stream.zeros({n}, DType::i64);
  group.all_reduce(stream, tensor(5));
  group.reduce_scatter(stream, tensor(2), tensor(2 * n));
  group.all_gather(stream, tensor(3 * n), tensor(3));
  group.all_to_all(stream, tensor(9), counts, tensor(4), counts);
  group.all_to_all_equal(stream, tensor(2 * n), tensor(2 * n));
  const std::vector<int64_t> begins = {0, 1, 1, 50, 54};
  group.reduce_scatter_uneven(stream, tensor(9), begins);
  group.all_gather_uneven(stream, std::vector<OwnedTensor>{{tensor(4), 1}, {tensor(5), 3}});
  group.broadcast(stream, tensor(7), 1);
  if (group.rank() == 0) group.send(stream, tensor(1), 1);
  if (group.rank() == 1) group.recv(stream, tensor(1), 0);
  group.barrier(stream);
}

std::map<std::string, double> expected_bytes(int rank) {
  const double row = 24, n = 4;
  return {{"all_reduce", 2 * 5 * row * (n - 1) / n},
          {"reduce_scatter", 2 * row * (n - 1)},
          {"all_gather", 3 * row * (n - 1)},
          {"all_to_all", 4 * row * (n - 1) / n},
          {"all_to_all_equal", 2 * row * (n - 1)},
          {"reduce_scatter_uneven", 9 * row * (n - 1) / n},
          {"all_gather_uneven", 9 * row * (n - 1) / n},
          {"broadcast", 7 * row * (n - 1) / n},
          {rank == 0 ? "send" : "recv", rank == 0 ? row : 0},
          {"barrier", 0}};
}

TEST(MetaGroup, CountsTheBytesThatThreadsSend) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    call_everything(rank.stream, *group);
    MetaGroup twin(4, rank.rank, "data");
    Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
    call_everything(meta, twin);
    EXPECT_EQ(twin.sent(), group->sent());
    if (rank.rank < 2) {
      EXPECT_EQ(twin.sent(), expected_bytes(rank.rank));
    }
    twin.reset_sent();
    EXPECT_TRUE(twin.sent().empty());
  });
}

TEST(MetaGroup, RepresentsThousandsOfRanks) {
  testing::Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  MetaGroup group(4096, 4095, "data");
  const Tensor all = meta.empty({4096, 1 << 20}, DType::f32), mine = all.narrow(0, 4095, 1);
  group.all_gather(meta, all, mine);
  EXPECT_EQ(group.sent().at("all_gather"), 4095.0 * (1 << 22));
}

TEST(MetaGroup, RepresentsRanksWithPeerMemory) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    testing::PeeredGroup peered(*group);
    MetaGroup twin(2, rank.rank, "data", PeerAccess::wanted);
    Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
    const auto call_all = [](Stream& stream, Group& of) {
      const auto integers = [&](const Shape& shape) { return stream.zeros(shape, DType::i64); };
      const RowGroups groups{integers({2}), integers({2}), integers({2, 2}), integers({2, 2})};
      const Tensor remote = integers({6}), rows = stream.zeros({8, 3}, DType::bf16),
                   weights = stream.zeros({6}, DType::f32), pool_weights = stream.zeros({8}, DType::f32);
      of.peers()->place_rows(stream, groups, remote, integers({4}), 8);
      of.peers()->push_rows(stream, {rows, pool_weights}, {rows.narrow(0, 0, 3), weights}, integers({6}), 2, remote);
      of.peers()->pull_rows(stream, {rows.narrow(0, 0, 3), weights}, {rows, pool_weights}, integers({6}), remote);
    };
    call_all(rank.stream, peered);
    call_all(meta, twin);
    EXPECT_EQ(twin.sent(), peered.sent());
    EXPECT_EQ(twin.sent(), (std::map<std::string, double>{
                               {"place_rows", 4 * 8}, {"push_rows", 6 * 10 / 2}, {"pull_rows", 6 * 10 / 2}}));
    EXPECT_EQ(MetaGroup(2, 0, "data").peers(), nullptr);
  });
}

TEST(MetaGroup, CannotMoveData) {
  testing::Rank rank(1);
  MetaGroup group(2, 0, "expert");
  EXPECT_EQ(test::message_of<CommError>([&] { group.barrier(rank.stream); }),
            "axis expert: barrier on cpu among 2 ranks that are only counted; a meta group serves meta streams");
  EXPECT_THROW(MetaGroup(2, 2, "expert"), ConfigError);
  EXPECT_THROW(MetaGroup(0, 0, "expert"), ConfigError);
}

}  // namespace
}  // namespace witan
