#include <chrono>

#include "cuda/comm/peer_moves.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::GpuPeerGroup;
using testing::GpuRank;
using testing::MoveSizes;
using testing::on_gpus;
using testing::Sends;

// If there are fewer GPUs, ranks share one: flags and stores work in the same way.
class PeerMemoryOnGpus : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, PeerMemoryOnGpus, ::testing::Values(2, 4));

TEST_P(PeerMemoryOnGpus, MovesRowsAsThreadsDo) {
  // Ranks should have GPUs of their own. Two can share one; with four, the copies of one would wait behind those of
  // another, which waits for it.
  if (GetParam() > 2 * cuda::devices()) GTEST_SKIP() << GetParam() << " ranks need " << GetParam() / 2 << " GPUs";
  const auto cases = testing::cases_on_cpus(GetParam());
  on_gpus(GetParam(), [&](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "gpus");
    ASSERT_NE(gpus.peers(), nullptr) << "these GPUs do not reach each other's memory";
    for (const auto& one : cases) testing::expect_moved(rank, *gpus.peers(), one);
  });
}

TEST_P(PeerMemoryOnGpus, ReplaysMoveTheCurrentRows) {
  on_gpus(GetParam(), [](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "gpus");
    ASSERT_NE(gpus.peers(), nullptr);
    testing::expect_replays_move_the_rows_of_their_time(rank, gpus);
  });
}

TEST_P(PeerMemoryOnGpus, ErrorsNameARankThatStaysAway) {
  ThreadWorld world(GetParam(), {.deadline_seconds = 2});
  const std::string message = test::message_of<CommError>([&] {
    on_gpus(world, [](GpuRank& rank) {
      GpuPeerGroup gpus(rank, "gpus");
      gpus.exchange()->barrier(rank.gpu);
      rank.gpu.wait();
      if (rank.rank != 1) gpus.exchange()->barrier(rank.gpu);
      rank.gpu.wait();
      rank.everyone("end")->barrier(rank.stream);
    });
  });
  EXPECT_TRUE(message.find("rank 1 did not reach an exchange through peer memory within 2 s") != std::string::npos ||
              message.find("did not finish within 2 s") != std::string::npos ||
              message.find("did not reach barrier within 2 s") != std::string::npos)
      << message;
}

TEST_P(PeerMemoryOnGpus, AThrowingRankEndsTheOthersWaits) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string message = test::message_of<DataError>([&] {
    on_gpus(GetParam(), [](GpuRank& rank) {
      GpuPeerGroup gpus(rank, "gpus");
      gpus.exchange()->barrier(rank.gpu);
      rank.gpu.wait();
      if (rank.rank == 1) throw DataError("the text is gone");
      gpus.exchange()->barrier(rank.gpu);
      rank.gpu.wait();
    });
  });
  EXPECT_EQ(message, "rank 1: the text is gone");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_P(PeerMemoryOnGpus, ErrorsNameBuffersOfDifferentSizes) {
  const std::string message = test::message_of<CommError>([&] {
    on_gpus(GetParam(), [](GpuRank& rank) {
      GpuPeerGroup gpus(rank, "gpus");
      const Tensor rows = rank.gpu.zeros({rank.rank == 1 ? 9 : 8, 4}, DType::f32),
                   none = rank.poisoned_on_gpu({3}, DType::i64);
      gpus.peers()->push_rows(rank.gpu, {rows, {}}, {rows, {}}, none, 1, none);
    });
  });
  EXPECT_NE(
      message.find("axis gpus: rank 1 calls push_rows of [9, 16, 0], expected as on rank 0: push_rows of [8, 16, 0]"),
      std::string::npos)
      << message;
}

TEST_P(PeerMemoryOnGpus, RefusesMoreRowsThanTheBufferHolds) {
  const std::string message = test::message_of<CommError>([&] {
    on_gpus(GetParam(), [](GpuRank& rank) {
      GpuPeerGroup gpus(rank, "gpus");
      const MoveSizes sizes{13, 2, 8, 4};
      const Sends sends(rank, rank.rank, sizes);
      const int64_t R = rank.size(), local = sizes.local(rank.size());
      const auto numbers = [&](const Shape& shape) { return rank.to_gpu(rank.stream.zeros(shape, DType::i64)); };
      const Tensor remote = numbers({26});
      gpus.peers()->place_rows(rank.gpu, {numbers({local}), numbers({local}), numbers({R, local}), numbers({R, local})},
                               remote, rank.to_gpu(sends.counts), 3);
      rank.gpu.wait();
      rank.everyone("end")->barrier(rank.stream);
    });
  });
  EXPECT_NE(message.find("than its pool can hold"), std::string::npos) << message;
}

}  // namespace
}  // namespace witan
