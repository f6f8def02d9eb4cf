#include <array>
#include <chrono>

#include "support/gpu_world.h"
#include "support/message_of.h"
#include "witan/comm/cuda.h"
#include "witan/comm/cuda/nccl_group.h"
#include "witan/parallel/groups.h"
#include "witan/tensor/queue.h"

namespace witan {
namespace {

using testing::GpuRank;
using testing::on_gpus;

constexpr Sums kBoth[] = {Sums::fast, Sums::in_tree};
// Without peer memory NCCL does everything; with it, reductions and gathers use our own kernels.
constexpr PeerAccess kEither[] = {PeerAccess::none, PeerAccess::wanted};

class NcclGroups : public testing::OverNccl {};
INSTANTIATE_TEST_SUITE_P(Gpus, NcclGroups, ::testing::Values(2, 4));

// A rank's group on the CPU and on the GPU.
struct Ends {
  Ends(GpuRank& rank, Sums sums, PeerAccess peers = PeerAccess::none, bool peers_in_graphs = false)
      : host(rank.everyone("host")),
        cpu(rank.everyone("cpu")),
        watch(cuda::watch(rank.gpu, *host)),
        gpu(cuda::make_group(rank.everyone("gpu"), rank.gpu, watch, {sums, peers, peers_in_graphs})) {}

  std::unique_ptr<HostGroup> host, cpu;
  std::shared_ptr<cuda::DeviceWatch> watch;
  std::unique_ptr<Group> gpu;
};

// Values of every dtype that differ from rank to rank.
Tensor own_values(GpuRank& rank, const Shape& shape, DType dtype) {
  if (is_floating(dtype)) return rank.own_normal(shape, dtype, "values");
  const Tensor wide = rank.own_normal(shape, DType::f64, "values"), out = rank.stream.empty(shape, dtype);
  for (int64_t i = 0; i < out.elements(); ++i) {
    const double value = wide.data<double>()[i] * 1e9;  // sums of int32 wrap
    if (dtype == DType::i32)
      out.data<int32_t>()[i] = static_cast<int32_t>(static_cast<int64_t>(value));
    else
      out.data<int64_t>()[i] = static_cast<int64_t>(value);
  }
  return out;
}

::testing::AssertionResult same(const Tensor& gpu, const Tensor& cpu, double rtol) {
  if (rtol > 0) return testing::close(gpu, cpu, rtol, rtol);
  const bool equal = std::memcmp(gpu.raw(), cpu.raw(), static_cast<size_t>(cpu.bytes())) == 0;
  return equal ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "bits differ";
}

constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64};

void reduce_as_threads_do(int ranks, Sums sums, PeerAccess peers) {
  on_gpus(ranks, [&](GpuRank& rank) {
    const Ends ends(rank, sums, peers);
    const int n = rank.size();
    for (const DType dtype : kAll)
      for (const Reduce how : {Reduce::sum, Reduce::max})
        for (const int64_t rows : {0, 1, 129, 5003}) {
          const bool order_is_free = ends.gpu->peers() == nullptr && sums == Sums::fast && how == Reduce::sum &&
                                     is_floating(dtype) && size_of(dtype) > 2;
          const double rtol = !order_is_free ? 0 : dtype == DType::f32 ? 1e-5 : 1e-13;
          SCOPED_TRACE(cat(dtype, " ", rows, " rows, sums ", static_cast<int>(sums)));
          const Tensor whole = own_values(rank, {rows, 3}, dtype), on_gpu = rank.to_gpu(whole);
          ends.cpu->all_reduce(rank.stream, whole, how);
          ends.gpu->all_reduce(rank.gpu, on_gpu, how);
          EXPECT_TRUE(same(rank.to_host(on_gpu), whole, rtol));

          const Tensor in = own_values(rank, {n * rows, 3}, dtype), out = rank.stream.empty({rows, 3}, dtype);
          const Tensor gpu_in = rank.to_gpu(in), gpu_out = rank.poisoned_on_gpu({rows, 3}, dtype);
          ends.cpu->reduce_scatter(rank.stream, out, in, how);
          ends.gpu->reduce_scatter(rank.gpu, gpu_out, gpu_in, how);
          EXPECT_TRUE(same(rank.to_host(gpu_out), out, rtol));
          const Tensor part = gpu_in.narrow(0, rank.rank * rows, rows);  // in place, in the rank's own part
          ends.gpu->reduce_scatter(rank.gpu, part, gpu_in, how);
          EXPECT_TRUE(same(rank.to_host(part), out, rtol));

          const Tensor uneven = own_values(rank, {rows, 3}, dtype), uneven_gpu = rank.to_gpu(uneven);
          std::vector<int64_t> begins;  // the first rank has no rows
          for (int r = 0; r <= n; ++r) begins.push_back(r <= 1 ? 0 : r == n ? rows * 3 : rows * 3 * r / (n + 1));
          const auto [begin, count] = part_of(begins, rank.rank);
          ends.cpu->reduce_scatter_uneven(rank.stream, uneven, begins, how);
          ends.gpu->reduce_scatter_uneven(rank.gpu, uneven_gpu, begins, how);
          const auto own = [&](const Tensor& x) { return x.reshape({rows * 3}).narrow(0, begin, count); };
          EXPECT_TRUE(same(own(rank.to_host(uneven_gpu)), own(uneven), rtol));
          const auto pieces = [&](const Tensor& x) {
            std::vector<OwnedTensor> all;
            for (int r = 0; r < n; ++r)
              all.push_back(
                  {x.reshape({rows * 3}).narrow(0, begins[static_cast<size_t>(r)], part_of(begins, r).second), r});
            return all;
          };
          ends.cpu->all_gather_uneven(rank.stream, pieces(uneven));
          ends.gpu->all_gather_uneven(rank.gpu, pieces(uneven_gpu));
          EXPECT_TRUE(same(rank.to_host(uneven_gpu), uneven, rtol));
        }
  });
}

TEST_P(NcclGroups, ReduceAsThreadsDo) {
  for (const Sums sums : kBoth)
    for (const PeerAccess peers : kEither) reduce_as_threads_do(GetParam(), sums, peers);
}

TEST_P(NcclGroups, SumsOfManyPiecesHaveTheBitsOfTheTree) {
  for (const PeerAccess peers : kEither)
    on_gpus(GetParam(), [&](GpuRank& rank) {
      const Ends ends(rank, Sums::in_tree, peers);
      const int64_t elements = 9'000'001;  // 34 MiB, more than one piece
      const Tensor x = rank.stream.empty({elements}, DType::f32);
      uint32_t bits = static_cast<uint32_t>(rank.rank + 1) * 2654435761u;
      for (float& value : x.span<float>()) {
        bits = bits * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<int32_t>(bits)) * 1e-9f;
      }
      const Tensor on_gpu = rank.to_gpu(x);
      ends.cpu->all_reduce(rank.stream, x);
      ends.gpu->all_reduce(rank.gpu, on_gpu);
      EXPECT_TRUE(same(rank.to_host(on_gpu), x, 0));
    });
}

TEST_P(NcclGroups, TheMaximumOfANaNIsNaN) {
  for (const PeerAccess peers : kEither)
    on_gpus(GetParam(), [&](GpuRank& rank) {
      const Ends ends(rank, Sums::fast, peers);
      const float own = rank.rank == 1 ? std::nanf("") : 1.0f;
      const Tensor x = rank.to_gpu(rank.tensor<float>({2}, {own, 2.0f}));
      ends.gpu->all_reduce(rank.gpu, x, Reduce::max);
      const auto values = rank.to_host(x).to_vector<float>();
      EXPECT_TRUE(std::isnan(values[0]));
      EXPECT_EQ(values[1], 2.0f);
    });
}

TEST_P(NcclGroups, CopyAsThreadsDo) {
  for (const PeerAccess peers : kEither)
    on_gpus(GetParam(), [&](GpuRank& rank) {
      const Ends ends(rank, Sums::fast, peers);
      const int n = rank.size(), me = rank.rank;
      for (const DType dtype : kAll)
        for (const int64_t rows : {0, 1, 77}) {
          const Tensor own = own_values(rank, {rows, 5}, dtype), parts = own_values(rank, {n * rows, 5}, dtype);
          const Tensor all = rank.stream.empty({n * rows, 5}, dtype);
          const auto check = [&](const auto& call, const Tensor& in) {
            const Tensor gpu_out = rank.poisoned_on_gpu({n * rows, 5}, dtype);
            call(*ends.cpu, rank.stream, all, in);
            call(*ends.gpu, rank.gpu, gpu_out, rank.to_gpu(in));
            EXPECT_TRUE(same(rank.to_host(gpu_out), all, 0));
          };
          check([](Group& g, Stream& s, const Tensor& out, const Tensor& in) { g.all_gather(s, out, in); }, own);
          check([](Group& g, Stream& s, const Tensor& out, const Tensor& in) { g.all_to_all_equal(s, out, in); },
                parts);
          const Tensor told = rank.to_gpu(own);
          ends.gpu->broadcast(rank.gpu, told, 1);
          ends.cpu->broadcast(rank.stream, own, 1);
          EXPECT_TRUE(same(rank.to_host(told), own, 0));
        }
      const Tensor x = rank.to_gpu(rank.tensor<float>({2}, {static_cast<float>(me), 7.0f})),
                   y = rank.to_gpu(rank.tensor<float>({2}, {0, 0}));
      if (me == 0) ends.gpu->send(rank.gpu, x, 1);
      if (me == 1) {
        ends.gpu->recv(rank.gpu, y, 0);
        EXPECT_EQ(rank.to_host(y).to_vector<float>(), (std::vector<float>{0, 7}));
      }
      ends.gpu->barrier(rank.gpu);
      rank.gpu.wait();
    });
}

TEST_P(NcclGroups, ExchangeUnequalRowsAsThreadsDo) {
  on_gpus(GetParam(), [&](GpuRank& rank) {
    const Ends ends(rank, Sums::fast);
    const int n = rank.size();
    std::vector<int64_t> sends, receives;
    for (int peer = 0; peer < n; ++peer) {
      sends.push_back((rank.rank * 3 + peer * 5) % 7);
      receives.push_back((peer * 3 + rank.rank * 5) % 7);
    }
    const Tensor send = rank.tensor<int64_t>({n}, sends), receive = rank.tensor<int64_t>({n}, receives);
    const Tensor in = own_values(rank, {7 * n, 3}, DType::f32), out = rank.stream.empty({7 * n, 3}, DType::f32);
    std::memset(out.raw(), 0xff, static_cast<size_t>(out.bytes()));
    const Tensor gpu_out = rank.poisoned_on_gpu({7 * n, 3}, DType::f32);
    ends.cpu->all_to_all(rank.stream, out, receive, in, send);
    ends.gpu->all_to_all(rank.gpu, gpu_out, rank.to_gpu(receive), rank.to_gpu(in), rank.to_gpu(send));
    EXPECT_TRUE(same(rank.to_host(gpu_out), out, 0));
  });
}

// Through the host's memory a graph exchanges the rows of its time, with counts that the host never reads.
TEST_P(NcclGroups, ExchangeUnequalRowsInGraphsThroughTheHost) {
  on_gpus(GetParam(), [&](GpuRank& rank) {
    const Ends ends(rank, Sums::fast, PeerAccess::host);
    const int64_t n = rank.size();
    const Tensor in = own_values(rank, {7 * n, 3}, DType::f32), gpu_in = rank.to_gpu(in);
    const Tensor gpu_out = rank.poisoned_on_gpu({7 * n, 3}, DType::f32);
    const Tensor send = rank.gpu.zeros({n}, DType::i64), receive = rank.gpu.zeros({n}, DType::i64);
    ends.gpu->all_to_all(rank.gpu, gpu_out, receive, gpu_in, send);
    rank.gpu.wait();
    const auto graph =
        record(*rank.gpu.queue(), [&] { ends.gpu->all_to_all(rank.gpu, gpu_out, receive, gpu_in, send); });
    for (int64_t time = 1; time < 4; ++time) {
      std::vector<int64_t> sends, receives;
      for (int64_t peer = 0; peer < n; ++peer) {
        sends.push_back((rank.rank * 3 + peer * 5 + time) % 7);
        receives.push_back((peer * 3 + rank.rank * 5 + time) % 7);
      }
      rank.gpu.write(send, sends.data());
      rank.gpu.write(receive, receives.data());
      graph->launch();
      const Tensor out = rank.to_host(gpu_out);
      ends.cpu->all_to_all(rank.stream, out, rank.tensor<int64_t>({n}, receives), in, rank.tensor<int64_t>({n}, sends));
      EXPECT_TRUE(same(rank.to_host(gpu_out), out, 0)) << "replay " << time;
    }
  });
}

TEST_P(NcclGroups, ErrorsNameDisagreements) {
  const std::string message = test::message_of<CommError>([&] {
    on_gpus(GetParam(), [](GpuRank& rank) {
      const Ends ends(rank, Sums::fast);
      ends.gpu->all_reduce(rank.gpu, rank.gpu.zeros({rank.rank == 1 ? 4 : 3}, DType::f32));
    });
  });
  EXPECT_NE(
      message.find("axis gpu: rank 1 calls all_reduce float32 [4], expected as on rank 0: all_reduce float32 [3]"),
      std::string::npos)
      << message;
}

TEST_P(NcclGroups, AThrowingRankEndsTheOthersWaits) {
  for (const PeerAccess peers : kEither) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string message = test::message_of<DataError>([&] {
      on_gpus(GetParam(), [peers](GpuRank& rank) {
        const Ends ends(rank, Sums::fast, peers);
        const Tensor x = rank.gpu.zeros({1 << 20}, DType::f32);
        ends.gpu->all_reduce(rank.gpu, x);
        rank.gpu.wait();
        if (rank.rank == 1) throw DataError("the text is gone");
        // Without this rank, as in a replayed graph, NCCL would wait forever.
        ends.gpu->all_reduce(rank.gpu, x);
        rank.gpu.wait();
      });
    });
    EXPECT_NE(message.find("rank 1: the text is gone"), std::string::npos) << message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

// Replays run without the host, so a rank that stays away is noticed only on the device.
TEST_P(NcclGroups, AThrowingRankEndsTheOthersReplays) {
  for (const PeerAccess peers : kEither) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string message = test::message_of<DataError>([&] {
      on_gpus(GetParam(), [peers](GpuRank& rank) {
        const Ends ends(rank, Sums::fast, peers);
        const Tensor x = rank.gpu.zeros({1 << 20}, DType::f32);
        ends.gpu->all_reduce(rank.gpu, x);
        rank.gpu.wait();
        struct Graph {
          ~Graph() {
            if (exec) cudaGraphExecDestroy(exec);
            if (graph) cudaGraphDestroy(graph);
          }
          cudaGraph_t graph = nullptr;
          cudaGraphExec_t exec = nullptr;
        } graph;
        cuda::check(cudaStreamBeginCapture(cuda::native(rank.gpu), cudaStreamCaptureModeThreadLocal), "capture");
        ends.gpu->all_reduce(rank.gpu, x);
        cuda::check(cudaStreamEndCapture(cuda::native(rank.gpu), &graph.graph), "end of capture");
        cuda::check(cudaGraphInstantiate(&graph.exec, graph.graph, 0), "instantiate");
        for (int replay = 0; replay < 10; ++replay) {
          if (rank.rank == 1 && replay == 5) throw DataError("the text is gone");
          cuda::check(cudaGraphLaunch(graph.exec, cuda::native(rank.gpu)), "launch");
          rank.gpu.wait();
        }
      });
    });
    EXPECT_NE(message.find("rank 1: the text is gone"), std::string::npos) << message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

// Only recorded calls of these groups use peer memory. Replays must move the current values, on whichever streams the
// calls are, and calls in between, which use NCCL, must not disturb them.
TEST_P(NcclGroups, RecordedCallsAlternateWithOthersAndOnTwoStreams) {
  on_gpus(GetParam(), [](GpuRank& rank) {
    const Ends ends(rank, Sums::in_tree, PeerAccess::wanted, /*peers_in_graphs=*/true);
    EXPECT_EQ(ends.gpu->peers(), nullptr);
    const int n = rank.size();
    constexpr int64_t kElements = 30011;
    std::vector<int64_t> begins;  // the first rank has no rows
    for (int r = 0; r <= n; ++r) begins.push_back(r <= 1 ? 0 : r == n ? kElements : kElements * r / (n + 1));
    const auto pieces = [&](const Tensor& x) {
      std::vector<OwnedTensor> all;
      for (int r = 0; r < n; ++r) {
        const auto [begin, count] = part_of(begins, r);
        all.push_back({x.narrow(0, begin, count / 3), r});
        all.push_back({x.narrow(0, begin + count / 3, count - count / 3), r});
      }
      return all;
    };
    Stream side(rank.gpu, int64_t{1} << 20);
    // On the CPU the two streams are one. On a GPU the calls of each wait for those of the other, and for nothing else.
    const auto calls = [&](Group& group, Stream& stream, Stream& beside, const std::vector<Tensor>& on) {
      if (&beside != &stream) beside.follow(stream);
      group.all_reduce(beside, on[0]);
      group.reduce_scatter_uneven(stream, on[1], begins);
      group.all_reduce(beside, on[2]);
      group.all_gather_uneven(stream, pieces(on[1]));
      if (&beside != &stream) stream.follow(beside);
    };
    const std::array<DType, 3> dtypes = {DType::bf16, DType::f32, DType::f32};
    std::vector<Tensor> on_gpu;
    for (const DType dtype : dtypes) on_gpu.push_back(rank.poisoned_on_gpu({kElements}, dtype));
    calls(*ends.gpu, rank.gpu, side, on_gpu);  // NCCL connects
    rank.gpu.wait();
    const auto graph = record(*rank.gpu.queue(), [&] { calls(*ends.gpu, rank.gpu, side, on_gpu); });
    for (int replay = 0; replay < 4; ++replay) {
      std::vector<Tensor> on_cpu;
      for (size_t i = 0; i < dtypes.size(); ++i) {
        on_cpu.push_back(rank.own_normal({kElements}, dtypes[i], cat("tensor ", i, " of replay ", replay)));
        rank.gpu.write(on_gpu[i], on_cpu[i].raw());
      }
      replay == 2 ? calls(*ends.gpu, rank.gpu, side, on_gpu) : graph->launch();
      calls(*ends.cpu, rank.stream, rank.stream, on_cpu);
      for (size_t i = 0; i < dtypes.size(); ++i)
        EXPECT_TRUE(same(rank.to_host(on_gpu[i]), on_cpu[i], 0)) << "tensor " << i << ", replay " << replay;
    }
  });
}

// Arrays whose sizes and addresses are not multiples of 16 bytes, in calls of several sizes that follow each other
// without a wait.
TEST_P(NcclGroups, ReduceAndGatherAtAnyAddress) {
  for (const PeerAccess peers : kEither)
    on_gpus(GetParam(), [&](GpuRank& rank) {
      const Ends ends(rank, Sums::in_tree, peers);
      const int n = rank.size();
      std::vector<std::pair<Tensor, Tensor>> pairs;
      for (const int64_t rows : {1, 7, 8, 9, 4097})
        for (const int64_t offset : {0, 1, 3}) {
          const Tensor x = own_values(rank, {offset + n * rows}, DType::bf16), on_gpu = rank.to_gpu(x);
          const auto body = [&](const Tensor& all) { return all.narrow(0, offset, n * rows); };
          const auto part = [&](const Tensor& all) { return all.narrow(0, offset + rank.rank * rows, rows); };
          ends.cpu->reduce_scatter(rank.stream, part(x), body(x));
          ends.cpu->all_gather(rank.stream, body(x), part(x));
          ends.gpu->reduce_scatter(rank.gpu, part(on_gpu), body(on_gpu));
          ends.gpu->all_gather(rank.gpu, body(on_gpu), part(on_gpu));
          pairs.emplace_back(x, on_gpu);
        }
      for (const auto& [cpu, gpu] : pairs) EXPECT_TRUE(same(rank.to_host(gpu), cpu, 0));
    });
}

TEST_P(NcclGroups, UnequalRowsCannotBeCaptured) {
  on_gpus(GetParam(), [](GpuRank& rank) {
    const Ends ends(rank, Sums::fast);
    const int n = rank.size();
    const Tensor rows = rank.gpu.zeros({n, 2}, DType::f32), counts = rank.gpu.zeros({n}, DType::i64);
    rank.gpu.wait();
    cuda::check(cudaStreamBeginCapture(cuda::native(rank.gpu), cudaStreamCaptureModeThreadLocal), "capture");
    const std::string message =
        test::message_of<DeviceError>([&] { ends.gpu->all_to_all(rank.gpu, rows, counts, rows, counts); });
    EXPECT_NE(message.find("cannot be part of a graph"), std::string::npos) << message;
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(cuda::native(rank.gpu), &graph);
    if (graph) cudaGraphDestroy(graph);
  });
}

// Parts of a fixed size need no counts, so that a graph exchanges their current content when it is replayed.
TEST_P(NcclGroups, EqualPartsAreExchangedByReplays) {
  on_gpus(GetParam(), [](GpuRank& rank) {
    const Ends ends(rank, Sums::fast);
    const int n = rank.size();
    const Tensor sent = rank.poisoned_on_gpu({2 * n, 3}, DType::f32),
                 arrived = rank.poisoned_on_gpu(sent.shape(), DType::f32);
    ends.gpu->all_to_all_equal(rank.gpu, arrived, sent);  // connects NCCL
    rank.gpu.wait();
    const auto graph = record(*rank.gpu.queue(), [&] { ends.gpu->all_to_all_equal(rank.gpu, arrived, sent); });
    for (int time = 0; time < 3; ++time) {
      std::vector<float> own, expected;
      for (int peer = 0; peer < n; ++peer)
        for (int i = 0; i < 6; ++i) {
          own.push_back(static_cast<float>(1000 * time + 100 * rank.rank + 10 * peer + i));
          expected.push_back(static_cast<float>(1000 * time + 100 * peer + 10 * rank.rank + i));
        }
      rank.gpu.write(sent, own.data());
      graph->launch();
      EXPECT_EQ(rank.to_host(arrived).to_vector<float>(), expected) << "replay " << time;
    }
  });
}

TEST_P(NcclGroups, LayoutsCreateThem) {
  ThreadWorld world(GetParam(), {.deadline_seconds = 30});
  on_gpus(world, [&](GpuRank& rank) {
    ParallelConfig config;
    config.expert_model_parallel_size = 2;
    const Groups groups = make_groups(world, Layout(config, world.size(), 8), rank.rank, rank.gpu);
    for (Group* group : {&groups.world(), &groups.of(Axis::expert), &groups.of(Axis::expert_replicate)}) {
      const Tensor x = rank.to_gpu(rank.tensor<float>({1}, {1.0f}));
      group->all_reduce(rank.gpu, x);
      EXPECT_EQ(rank.to_host(x).to_vector<float>(), std::vector<float>{static_cast<float>(group->size())});
    }
    const Tensor x = rank.tensor<float>({1}, {2.0f});
    groups.host().all_reduce(rank.stream, x);
    EXPECT_EQ(x.data<float>()[0], 2.0f * static_cast<float>(world.size()));
  });
}

}  // namespace
}  // namespace witan
