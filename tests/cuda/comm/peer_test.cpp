#include <chrono>

#include "moe/moe_support.h"
#include "support/gpu_world.h"
#include "support/message_of.h"
#include "support/thread_peers.h"
#include "witan/comm/threads/peer_memory.h"

namespace witan {
namespace {

using testing::GpuPeerGroup;
using testing::GpuRank;
using testing::on_gpus;
using testing::random_ids;
using testing::values;

// Ranks share a GPU where there are fewer: flags and stores are the same.
class PeerMemoryOnGpus : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, PeerMemoryOnGpus, ::testing::Values(2, 4));

struct Sizes {
  int64_t T, K, E, D;
};

// The send order of random ids, as a rank has it, on the host.
struct Sends {
  Sends(GpuRank& rank, const Sizes& sizes) {
    const auto ids = random_ids(sizes.T, sizes.K, sizes.E, cat("ids ", rank.rank));
    std::vector<int64_t> of_slot(ids.size(), -1), of_row;
    std::vector<int64_t> histogram(static_cast<size_t>(sizes.E));
    for (int32_t e = 0; e < sizes.E; ++e)
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != e || i % 11 == 3) continue;  // some are dropped
        of_slot[i] = static_cast<int64_t>(of_row.size());
        of_row.push_back(static_cast<int64_t>(i));
        ++histogram[static_cast<size_t>(e)];
      }
    of_row.resize(ids.size(), -1);
    slot = rank.tensor<int64_t>({sizes.T * sizes.K}, of_slot);
    source = rank.tensor<int64_t>({sizes.T * sizes.K}, of_row);
    counts = rank.tensor<int64_t>({sizes.E}, histogram);
  }
  Tensor slot, source, counts;
};

// Integers on both sides.
struct Both {
  Both(GpuRank& rank, const Shape& shape) : cpu(rank.stream.zeros(shape, DType::i64)), gpu(rank.to_gpu(cpu)) {}
  Tensor cpu, gpu;
};

void compare_with_threads(GpuRank& rank, Group& threads, GpuPeerGroup& gpus, DType dtype, const Sizes& sizes) {
  SCOPED_TRACE(cat(dtype, " T=", sizes.T, " K=", sizes.K, " E=", sizes.E, " D=", sizes.D));
  const auto [T, K, E, D] = sizes;
  const int64_t R = rank.size(), local = E / R, capacity = R * T * std::min(K, local), N = T * K;
  const DType sums = accumulator(dtype);
  testing::ThreadPeers reference(threads, threads);
  PeerMemory& peers = *gpus.peers();
  const Sends sends(rank, sizes);
  const Both begin(rank, {local}), count(rank, {local}), from(rank, {R, local}), of(rank, {R, local}),
      remote(rank, {N});
  reference.place_rows(rank.stream, {begin.cpu, count.cpu, from.cpu, of.cpu}, remote.cpu, sends.counts, capacity);
  peers.place_rows(rank.gpu, {begin.gpu, count.gpu, from.gpu, of.gpu}, remote.gpu, rank.to_gpu(sends.counts), capacity);
  for (const Both* both : {&begin, &count, &from, &of, &remote})
    EXPECT_EQ(rank.to_host(both->gpu).to_vector<int64_t>(), both->cpu.to_vector<int64_t>());

  const Tensor x = rank.own_normal({T, D}, dtype, "x"), w = rank.own_normal({N}, sums, "w");
  const Tensor pool = rank.stream.empty({capacity, D}, dtype), weights = rank.stream.empty({capacity}, sums);
  std::memset(pool.raw(), 0xff, static_cast<size_t>(pool.bytes()));
  std::memset(weights.raw(), 0xff, static_cast<size_t>(weights.bytes()));
  const Tensor gpu_pool = rank.poisoned_on_gpu({capacity, D}, dtype),
               gpu_weights = rank.poisoned_on_gpu({capacity}, sums);
  reference.push_rows(rank.stream, {pool, weights}, {x, w}, sends.source, K, remote.cpu);
  peers.push_rows(rank.gpu, {gpu_pool, gpu_weights}, {rank.to_gpu(x), rank.to_gpu(w)}, rank.to_gpu(sends.source), K,
                  remote.gpu);
  const auto same_bits = [&](const Tensor& gpu, const Tensor& cpu) {
    const Tensor fetched = rank.to_host(gpu);
    return std::memcmp(fetched.raw(), cpu.raw(), static_cast<size_t>(cpu.bytes())) == 0;
  };
  EXPECT_TRUE(same_bits(gpu_pool, pool)) << "rows, and what is between them";
  EXPECT_TRUE(same_bits(gpu_weights, weights));

  const Tensor y = rank.stream.empty({T, D}, dtype), back = rank.stream.empty({N}, sums);
  const Tensor gpu_y = rank.poisoned_on_gpu({T, D}, dtype), gpu_back = rank.poisoned_on_gpu({N}, sums);
  reference.pull_rows(rank.stream, {y, back}, {pool, weights}, sends.slot, remote.cpu);
  peers.pull_rows(rank.gpu, {gpu_y, gpu_back}, {gpu_pool, gpu_weights}, rank.to_gpu(sends.slot), remote.gpu);
  EXPECT_TRUE(same_bits(gpu_y, y)) << "sums in the order of k";
  EXPECT_TRUE(same_bits(gpu_back, back));

  // Rows alone, and weights alone.
  const Tensor rows_only = rank.poisoned_on_gpu({T, D}, dtype), weights_only = rank.poisoned_on_gpu({N}, sums);
  peers.pull_rows(rank.gpu, {rows_only, {}}, {gpu_pool, {}}, rank.to_gpu(sends.slot), remote.gpu);
  peers.pull_rows(rank.gpu, {{}, weights_only}, {{}, gpu_weights}, rank.to_gpu(sends.slot), remote.gpu);
  EXPECT_TRUE(same_bits(rows_only, y));
  EXPECT_TRUE(same_bits(weights_only, back));
}

TEST_P(PeerMemoryOnGpus, DoesAsThreadsDo) {
  // Ranks have GPUs of their own. Two get along on one; of four, one's copies wait behind another's, which waits for
  // it.
  if (GetParam() > 2 * cuda::devices()) GTEST_SKIP() << GetParam() << " ranks need " << GetParam() / 2 << " GPUs";
  on_gpus(GetParam(), [](GpuRank& rank) {
    const auto threads = rank.everyone("threads");
    GpuPeerGroup gpus(rank, "gpus");
    ASSERT_NE(gpus.peers(), nullptr) << "these GPUs do not reach each other's memory";
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
      for (const Sizes& sizes : std::vector<Sizes>{{13, 2, 8, 64},   // rows of several packs
                                                   {77, 1, 4, 520},  // more than a lane's loads; not a power of two
                                                   {5, 4, 4, 7},     // rows that no pack fits
                                                   {40, 36, 40, 8},  // more assignments than lanes
                                                   {1, 1, 16, 1},
                                                   {0, 2, 8, 16}})
        compare_with_threads(rank, *threads, gpus, dtype, sizes);
  });
}

// Sends follow each other without the host; epochs go on from call to call and from replay to replay.
TEST_P(PeerMemoryOnGpus, ReplaysOfAGraphMoveTheRowsOfTheirTime) {
  on_gpus(GetParam(), [](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "gpus");
    ASSERT_NE(gpus.peers(), nullptr);
    const Sizes sizes{33, 2, 8, 256};
    const Sends sends(rank, sizes);
    const int64_t R = rank.size(), local = sizes.E / R, N = sizes.T * sizes.K, capacity = R * sizes.T * 2;
    const Both begin(rank, {local}), count(rank, {local}), from(rank, {R, local}), of(rank, {R, local}),
        remote(rank, {N});
    const Tensor counts = rank.to_gpu(sends.counts), source = rank.to_gpu(sends.source), slot = rank.to_gpu(sends.slot);
    const Tensor x = rank.gpu.empty({sizes.T, sizes.D}, DType::f32), y = rank.gpu.empty(x.shape(), DType::f32),
                 pool = rank.gpu.empty({capacity, sizes.D}, DType::f32);
    const auto step = [&] {
      PeerMemory& peers = *gpus.peers();
      peers.place_rows(rank.gpu, {begin.gpu, count.gpu, from.gpu, of.gpu}, remote.gpu, counts, capacity);
      peers.push_rows(rank.gpu, {pool, {}}, {x, {}}, source, sizes.K, remote.gpu);
      gpus.exchange()->barrier(rank.gpu);
      peers.pull_rows(rank.gpu, {y, {}}, {pool, {}}, slot, remote.gpu);
    };
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    rank.gpu.wait();
    cuda::check(cudaStreamBeginCapture(cuda::native(rank.gpu), cudaStreamCaptureModeThreadLocal), "capture");
    step();
    cuda::check(cudaStreamEndCapture(cuda::native(rank.gpu), &graph), "end of capture");
    cuda::check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    for (int replay = 0; replay < 100; ++replay) {
      const Tensor own = rank.own_normal(x.shape(), DType::f32, cat("x of replay ", replay % 10));
      rank.gpu.write(x, own.raw());
      cuda::check(cudaGraphLaunch(exec, cuda::native(rank.gpu)), "launch");
      const auto got = values(rank.to_host(y)), had = values(own);
      const int64_t* slots = sends.slot.data<int64_t>();
      for (int64_t t = 0; t < sizes.T; ++t) {
        const int copies = (slots[2 * t] >= 0) + (slots[2 * t + 1] >= 0);
        for (int64_t d = 0; d < sizes.D; ++d) {
          const auto at = static_cast<size_t>(t * sizes.D + d);
          ASSERT_EQ(got[at], copies * had[at]) << "replay " << replay << ", token " << t;
        }
      }
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
}

TEST_P(PeerMemoryOnGpus, ARankThatStaysAwayIsNamed) {
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
  EXPECT_TRUE(message.find("rank 1 did not reach an exchange of rows within 2 s") != std::string::npos ||
              message.find("did not finish within 2 s") != std::string::npos ||
              message.find("did not reach barrier within 2 s") != std::string::npos)
      << message;
}

TEST_P(PeerMemoryOnGpus, ARankThatThrowsEndsTheWaitsOfOthers) {
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

TEST_P(PeerMemoryOnGpus, PoolsOfDifferentSizesAreNamed) {
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

TEST_P(PeerMemoryOnGpus, MoreRowsThanThePoolHoldsAreNamed) {
  const std::string message = test::message_of<CommError>([&] {
    on_gpus(GetParam(), [](GpuRank& rank) {
      GpuPeerGroup gpus(rank, "gpus");
      const Sizes sizes{13, 2, 8, 4};
      const Sends sends(rank, sizes);
      const int64_t R = rank.size(), local = sizes.E / R;
      const Both begin(rank, {local}), count(rank, {local}), from(rank, {R, local}), of(rank, {R, local}),
          remote(rank, {26});
      gpus.peers()->place_rows(rank.gpu, {begin.gpu, count.gpu, from.gpu, of.gpu}, remote.gpu,
                               rank.to_gpu(sends.counts), 3);
      rank.gpu.wait();
      rank.everyone("end")->barrier(rank.stream);
    });
  });
  EXPECT_NE(message.find("than its pool can hold"), std::string::npos) << message;
}

}  // namespace
}  // namespace witan
