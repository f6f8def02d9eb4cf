// Peer memory between ranks in several processes of one host, with one or more threads each: moves as between threads,
// and failures when a process ends.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <optional>

#include "cuda/comm/peer_moves.h"

namespace witan {
namespace {

using testing::Ended;
using testing::expect_whole;
using testing::GpuPeerGroup;
using testing::GpuProcesses;
using testing::GpuRank;
using ::testing::HasSubstr;
using testing::on_gpu_processes;

using Clock = std::chrono::steady_clock;

struct Start {
  int processes, threads;
  bool sees_one;  // each process sees only its own GPU

  int ranks() const { return processes * threads; }
};
std::ostream& operator<<(std::ostream& out, const Start& of) {
  return out << of.processes << " x " << of.threads << (of.sees_one ? ", one GPU visible" : "");
}

// If there are fewer GPUs, ranks share one, as in PeerMemoryOnGpus.
class PeersOfProcesses : public ::testing::TestWithParam<Start> {
 protected:
  void SetUp() override {
    if (std::getenv(testing::kFreshProcess) != nullptr) return;
    const auto& [processes, threads, sees_one] = GetParam();
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
    const int needed = sees_one ? processes : (GetParam().ranks() + 1) / 2;
    if (cuda::devices() < needed) GTEST_SKIP() << needed << " GPUs are needed, " << cuda::devices() << " can be used";
  }
  GpuProcesses start(double deadline_seconds = 30) const {
    GpuProcesses start{GetParam().processes, GetParam().threads, deadline_seconds};
    if (GetParam().sees_one)
      start.variables = [](int process) { return std::vector<std::string>{cat("CUDA_VISIBLE_DEVICES=", process)}; };
    return start;
  }
};
INSTANTIATE_TEST_SUITE_P(Starts, PeersOfProcesses,
                         ::testing::Values(Start{2, 1, false}, Start{2, 1, true}, Start{2, 2, false},
                                           Start{4, 1, false}));

// Each process catches its own error, to measure how soon it came.
template <class Body>
void expect_to_end_soon(const Body& body) {
  constexpr std::chrono::seconds kSoon{8};
  const auto begin = Clock::now();
  try {
    body();
  } catch (...) {
    EXPECT_LT(Clock::now() - begin, kSoon);
    throw;
  }
}

// The first process was killed; the others must have ended in time, with an error that says so.
void expect_the_first_was_lost(const std::vector<Ended>& ended) {
  EXPECT_TRUE(ended.front().killed);
  for (size_t process = 1; process < ended.size(); ++process) {
    EXPECT_EQ(ended[process].code, static_cast<int>(ExitCode::rank_lost)) << ended[process].said;
    EXPECT_THAT(ended[process].said, HasSubstr("is lost"));
  }
}

TEST_P(PeersOfProcesses, AreFoundByProbing) {
  expect_whole(on_gpu_processes(start(), [](GpuRank& rank) {
    const auto host = rank.everyone("probe");
    const cuda::PeerIslands found = cuda::find_peers(*host, rank.gpu.device().index);
    EXPECT_EQ(found.of_rank, std::vector<int>(static_cast<size_t>(rank.size()), 0)) << found.why;
    EXPECT_EQ(found.why, "");
    return "";
  }));
}

TEST_P(PeersOfProcesses, MoveRowsAsThreadsDo) {
  expect_whole(on_gpu_processes(start(), [this](GpuRank& rank) {
    const auto cases = testing::cases_on_cpus(GetParam().ranks());
    GpuPeerGroup gpus(rank, "gpus");
    if (gpus.peers() == nullptr) throw DeviceError("these GPUs do not reach each other's memory");
    for (const auto& one : cases) testing::expect_moved(rank, *gpus.peers(), one);
    return "";
  }));
}

TEST_P(PeersOfProcesses, ReplayGraphs) {
  expect_whole(on_gpu_processes(start(), [](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "gpus");
    if (gpus.peers() == nullptr) throw DeviceError("these GPUs do not reach each other's memory");
    testing::expect_replays_move_the_rows_of_their_time(rank, gpus);
    return "";
  }));
}

// Groups are destroyed and created again: memory that was opened is closed, and opened again.
TEST_P(PeersOfProcesses, CanBeCreatedAgain) {
  expect_whole(on_gpu_processes(start(), [](GpuRank& rank) {
    for (int time = 0; time < 5; ++time) {
      std::optional<GpuPeerGroup> gpus(std::in_place, rank, cat("gpus ", time));
      if (gpus->peers() == nullptr) throw DeviceError("these GPUs do not reach each other's memory");
      gpus->exchange()->barrier(rank.gpu);
      rank.gpu.wait();
      const auto parts = Clock::now();
      gpus.reset();
      EXPECT_LT(std::chrono::duration<double>(Clock::now() - parts).count(), cuda::kPartingSeconds)
          << "nobody waits longer than until all are done";
    }
    return "";
  }));
}

TEST_P(PeersOfProcesses, AThrowingProcessEndsTheOthersWaits) {
  const auto ended = on_gpu_processes(start(), [](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "gpus");
    gpus.exchange()->barrier(rank.gpu);
    rank.gpu.wait();
    if (rank.rank == rank.size() - 1) throw DataError("the text is gone");
    expect_to_end_soon([&] {
      gpus.exchange()->barrier(rank.gpu);
      rank.gpu.wait();
    });
    return "it was not told";
  });
  const int last = GetParam().ranks() - 1;
  EXPECT_EQ(ended.back().code, static_cast<int>(ExitCode::data)) << ended.back().said;
  EXPECT_EQ(ended.back().said, cat("rank ", last, ": the text is gone"));
  for (size_t process = 0; process + 1 < ended.size(); ++process) {
    EXPECT_EQ(ended[process].code, static_cast<int>(ExitCode::rank_lost)) << ended[process].said;
    EXPECT_THAT(ended[process].said, HasSubstr(cat("rank ", last)));
  }
}

// The first process is killed while its GPU pushes rows into the others' memory.
TEST_P(PeersOfProcesses, AProcessKilledDuringAPushEndsTheOthers) {
  const auto ended = on_gpu_processes(start(), [](GpuRank& rank) {
    constexpr int64_t kTokens = 8192, kWidth = 4096;
    GpuPeerGroup gpus(rank, "gpus");
    const int64_t R = rank.size();
    const Tensor x = rank.gpu.zeros({kTokens, kWidth}, DType::bf16),
                 pool = rank.gpu.zeros({kTokens, kWidth}, DType::bf16);
    std::vector<int64_t> source(kTokens), places(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) {
      source[static_cast<size_t>(i)] = i;
      places[static_cast<size_t>(i)] = (rank.rank + i) % R * PeerMemory::kRank + i;
    }
    const Tensor of = rank.to_gpu(rank.tensor<int64_t>({kTokens}, source)),
                 remote = rank.to_gpu(rank.tensor<int64_t>({kTokens}, places));
    rank.gpu.wait();
    expect_to_end_soon([&] {
      for (int call = 0; call < 1000; ++call) {
        gpus.peers()->push_rows(rank.gpu, {pool, {}}, {x, {}}, of, 1, remote);
        if (rank.rank == 0 && call == 20) ::raise(SIGKILL);
      }
      rank.gpu.wait();
    });
    return "it was not told";
  });
  expect_the_first_was_lost(ended);
}

// A process is killed while the others' kernels wait for it, with no call of their hosts in progress.
TEST_P(PeersOfProcesses, AKilledProcessEndsTheKernelsThatWaitForIt) {
  const auto ended = on_gpu_processes(start(), [](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "gpus");
    gpus.exchange()->barrier(rank.gpu);
    rank.gpu.wait();
    if (rank.rank == 0) ::raise(SIGKILL);
    expect_to_end_soon([&] {
      for (int call = 0; call < 3; ++call) gpus.exchange()->barrier(rank.gpu);
      rank.gpu.wait();
    });
    return "it was not told";
  });
  expect_the_first_was_lost(ended);
}

TEST_P(PeersOfProcesses, ErrorsNameBuffersOfDifferentSizes) {
  const auto ended = on_gpu_processes(start(), [](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "gpus");
    const Tensor rows = rank.gpu.zeros({rank.rank == 1 ? 9 : 8, 4}, DType::f32),
                 none = rank.poisoned_on_gpu({3}, DType::i64);
    gpus.peers()->push_rows(rank.gpu, {rows, {}}, {rows, {}}, none, 1, none);
    return "";
  });
  size_t named = 0;
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost)) << one.said;
    named += one.said.find(
                 "axis gpus: rank 1 calls push_rows of [9, 16, 0], expected as on rank 0: push_rows of "
                 "[8, 16, 0]") != std::string::npos;
  }
  EXPECT_GE(named, 1u) << "the first process that notices reports its failure to the others";
}

TEST_P(PeersOfProcesses, RefusesBuffersOutsideTheArena) {
  const auto ended = on_gpu_processes(start(), [](GpuRank& rank) {
    GpuPeerGroup gpus(rank, "gpus");
    Stream other(rank.gpu.device(), Arena::reserve_on_gpu(rank.gpu.device().index, 1 << 20), rank.pool, 1 << 10);
    const Tensor rows = other.zeros({8, 4}, DType::f32), none = rank.poisoned_on_gpu({3}, DType::i64);
    other.wait();
    gpus.peers()->push_rows(rank.gpu, {rows, {}}, {rows, {}}, none, 1, none);
    return "";
  });
  size_t named = 0;
  for (const Ended& one : ended) {
    EXPECT_NE(one.code, 0);
    named += one.said.find("must lie in its rank's arena") != std::string::npos;
  }
  EXPECT_GE(named, 1u);
}

}  // namespace
}  // namespace witan
