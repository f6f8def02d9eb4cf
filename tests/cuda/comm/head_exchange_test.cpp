// Exchanges of heads and positions, by kernels that store into peer memory and by NCCL, against plain loops on the CPU.
#include <gmock/gmock.h>

#include <cstring>

#include "support/attention.h"
#include "support/gpu_world.h"
#include "support/message_of.h"
#include "witan/comm/context.h"
#include "witan/kernels/attention/sequence_pieces.h"

namespace witan {
namespace {

using testing::GpuPeerGroup;
using testing::GpuRank;
using testing::heads_of;
using testing::on_gpus;
using testing::own_heads_of;
using testing::share_of;

struct Case {
  int64_t B, S, P, G, w;  // S and heads in units of ranks, except shared ones
};
// Positions in whole packs, in words, in neither; G = 1: one head for all ranks.
std::vector<Case> cases_of(int n) {
  return {{2, 4L * n, 2L * n, n, 5},      {1, 2L * n, n, 1, 3}, {2, 16L * n, 2L * n, 1, 8},
          {3, 6L * n, 3L * n, 3L * n, 2}, {0, 2L * n, n, n, 4}, {2, 0, n, n, 4},
          {2, 256L * n, 2L * n, 1, 128},  {1, 2L * n, n, n, 1}};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

// Exchanges to heads and back, and expects every element where a loop over the whole finds it.
void expect_exchanged(GpuRank& rank, Group& group, const Case& c, DType dtype) {
  SCOPED_TRACE(cat("B=", c.B, " S=", c.S, " P=", c.P, " G=", c.G, " w=", c.w, " ", dtype, " on rank ", rank.rank));
  const int n = rank.size();
  const Tensor all[] = {rank.normal({c.B, c.S, c.P, c.w}, dtype, "q"), rank.normal({c.B, c.S, c.G, c.w}, dtype, "k"),
                        rank.normal({c.B, c.S, c.G, 2 * c.w}, dtype, "v")};
  std::vector<Tensor> own, parts;
  for (const Tensor& x : all) {
    own.push_back(share_of(rank, x, n, rank.rank));
    parts.push_back(rank.to_gpu(own.back()));
  }
  const std::vector<Tensor> wholes = exchange_to_heads(rank.gpu, parts, group);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(same_bits(rank.to_host(wholes[i]), own_heads_of(rank, all[i], n, rank.rank))) << "tensor " << i;
  const std::vector<Tensor> back = exchange_to_positions(rank.gpu, wholes, group);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t P = all[i].size(2), Q = wholes[i].size(2);
    const Tensor found = rank.to_host(back[i]);
    for (int r = 0; r < n; ++r)
      EXPECT_TRUE(same_bits(heads_of(rank, found, r * Q, Q), heads_of(rank, own[i], r * P / n, Q))) << "tensor " << i;
  }
}

// If there are fewer GPUs, ranks share one: flags and stores work in the same way.
class HeadExchangeByPeers : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
    if (GetParam() > 2 * cuda::devices()) GTEST_SKIP() << GetParam() << " ranks need " << GetParam() / 2 << " GPUs";
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, HeadExchangeByPeers, ::testing::Values(2, 4, 8));

TEST_P(HeadExchangeByPeers, EveryElementGoesToItsPlace) {
  on_gpus(GetParam(), [&](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "context");
    ASSERT_NE(gpus.peers(), nullptr) << "these GPUs do not reach each other's memory";
    for (const Case& c : cases_of(GetParam()))
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
        expect_exchanged(rank, gpus, c, dtype);
  });
}

// Memory beside the pieces must not change.
TEST_P(HeadExchangeByPeers, OtherMemoryIsNotWritten) {
  on_gpus(GetParam(), [&](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "context");
    ASSERT_NE(gpus.peers(), nullptr);
    const int n = GetParam();
    const int64_t B = 2, C = 3, w = 24, strip = 64;
    const Tensor x = rank.own_normal({B, 2 * C, n, w}, DType::bf16, "x"), from = rank.to_gpu(x);
    const Shape whole{B, 2 * n * C, 1, w};
    const int64_t elements = whole.elements();
    const Tensor around = rank.poisoned_on_gpu({elements + 2 * strip}, DType::bf16);
    const Tensor to = around.narrow(0, strip, elements).reshape(whole);
    gpus.peers()->exchange_pieces(
        rank.gpu, {{to, from, kernels::pieces_by_positions(to, n), kernels::pieces_by_heads(from, n), {B, C, w}}});
    const Tensor found = rank.to_host(around);
    const auto* bits = reinterpret_cast<const uint16_t*>(found.raw());
    for (int64_t i = 0; i < strip; ++i) {
      EXPECT_EQ(bits[i], 0xffff) << "before";
      EXPECT_EQ(bits[strip + elements + i], 0xffff) << "after";
    }
    const auto got = testing::values(found.narrow(0, strip, elements));
    for (int r = 0; r < n; ++r) {
      const auto theirs = testing::values(rank.normal(x.shape(), DType::bf16, cat("x of rank ", r)));
      const auto positions = testing::zigzag(2 * n * C, n, r);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t s = 0; s < 2 * C; ++s)
          for (int64_t i = 0; i < w; ++i)
            ASSERT_EQ(got[static_cast<size_t>((b * 2 * n * C + positions.at(s)) * w + i)],
                      theirs[static_cast<size_t>(((b * 2 * C + s) * n + rank.rank) * w + i)]);
    }
  });
}

TEST_P(HeadExchangeByPeers, ReplaysMoveTheCurrentHeads) {
  on_gpus(GetParam(), [&](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "context");
    ASSERT_NE(gpus.peers(), nullptr);
    const int n = GetParam();
    const Shape shape{2, 8, 2 * n, 16};
    const Tensor x = rank.gpu.empty(shape, DType::f32), z = rank.gpu.empty(shape, DType::f32);
    Tensor back, again;
    const auto step = [&] {
      const std::vector<Tensor> wholes = exchange_to_heads(rank.gpu, {x, z}, gpus);
      const std::vector<Tensor> parts = exchange_to_positions(rank.gpu, wholes, gpus);
      back = parts[0], again = parts[1];
    };
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    rank.gpu.wait();
    cuda::check(cudaStreamBeginCapture(cuda::native(rank.gpu), cudaStreamCaptureModeThreadLocal), "capture");
    step();
    cuda::check(cudaStreamEndCapture(cuda::native(rank.gpu), &graph), "end of capture");
    cuda::check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    for (int replay = 0; replay < 50; ++replay) {
      const Tensor own = rank.own_normal(shape, DType::f32, cat("x of replay ", replay % 7)),
                   other = rank.own_normal(shape, DType::f32, cat("z of replay ", replay % 5));
      rank.gpu.write(x, own.raw());
      rank.gpu.write(z, other.raw());
      cuda::check(cudaGraphLaunch(exec, cuda::native(rank.gpu)), "launch");
      ASSERT_TRUE(same_bits(rank.to_host(back), own)) << "replay " << replay;
      ASSERT_TRUE(same_bits(rank.to_host(again), other)) << "replay " << replay;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
}

TEST_P(HeadExchangeByPeers, ErrorsNameTheDifferentSizes) {
  const std::string message = test::message_of<CommError>([&] {
    on_gpus(GetParam(), [](GpuRank& rank) {
      GpuPeerGroup gpus(rank, "context");
      const int64_t w = rank.rank == 1 ? 4 : 3;
      exchange_to_heads(rank.gpu, {rank.gpu.zeros({1, 2, rank.size(), w}, DType::f32)}, gpus);
    });
  });
  EXPECT_THAT(message, ::testing::HasSubstr("axis context: rank 1 calls an exchange of pieces of [1, 8, 4], expected "
                                            "as on rank 0: an exchange of pieces of [1, 6, 4]"));
}

// Processes open each other's arenas, so that addresses are shifted.
TEST(HeadExchangeOfProcesses, EveryElementGoesToItsPlace) {
  if (std::getenv(testing::kFreshProcess) == nullptr && cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  const auto ended = testing::on_gpu_processes({2, 1}, [](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "context");
    if (gpus.peers() == nullptr) return std::string("no peers");
    for (const Case& c : cases_of(2)) expect_exchanged(rank, gpus, c, DType::bf16);
    return std::string(::testing::Test::HasFailure() ? "other elements" : "all elements");
  });
  for (const testing::Ended& one : ended) EXPECT_EQ(one.said, "all elements");
}

class HeadExchangeOverNccl : public testing::OverNccl {};
INSTANTIATE_TEST_SUITE_P(Gpus, HeadExchangeOverNccl, ::testing::Values(2, 4));

// Packing around NCCL's messages, and stores by kernels, must give the same result, and count the same bytes.
TEST_P(HeadExchangeOverNccl, EveryElementGoesToItsPlace) {
  on_gpus(GetParam(), [&](GpuRank& rank) {
    const auto host = rank.everyone("host");
    const auto watch = cuda::watch(rank.gpu, *host);
    const auto plain = cuda::make_group(rank.everyone("plain"), rank.gpu, watch, {}),
               peers = cuda::make_group(rank.everyone("peers"), rank.gpu, watch, {.peers = PeerAccess::moves});
    for (const Case& c : cases_of(GetParam()))
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        expect_exchanged(rank, *plain, c, dtype);
        expect_exchanged(rank, *peers, c, dtype);
      }
    EXPECT_EQ(plain->sent(), peers->sent());
  });
}

}  // namespace
}  // namespace witan
