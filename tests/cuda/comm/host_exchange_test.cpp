// Rows that GPUs exchange through memory of their host, without reaching each other's, compared with the same exchange
// between ranks on the CPU.
#include "witan/comm/cuda/host_exchange.h"

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <cstring>

#include "support/gpu_world.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/tensor/queue.h"

namespace witan {
namespace {

using ::testing::AnyOf;
using testing::Ended;
using testing::expect_whole;
using testing::GpuProcesses;
using testing::GpuRank;
using ::testing::HasSubstr;
using testing::on_gpu_processes;
using testing::on_gpus;

// The exchange alone, without NCCL: for ranks that share a GPU too.
class ThroughHost : public Group, public cuda::Watched {
 public:
  explicit ThroughHost(GpuRank& rank)
      : Group(rank.size(), rank.rank, "gpus"),
        link_(rank.everyone("gpus"), rank.gpu),
        watch_(cuda::watch(rank.gpu, link_.group())),
        exchange_(cuda::HostExchange::make(link_, rank.gpu, *watch_)) {
    watch_->add(*this);
    require<DeviceError>(exchange_ != nullptr, "these GPUs do not reach memory that the ranks share");
  }
  ~ThroughHost() override {
    watch_->settled();
    watch_->remove(*this);
  }

  std::string complaint(double) override { return exchange_ ? exchange_->complaint() : std::string(); }
  void stop() noexcept override {
    if (exchange_) exchange_->stop();
  }
  void abort() noexcept override {}

 private:
  void perform(Stream& stream, const Collective& call) override {
    watch_->poll(0);
    exchange_->perform(stream, call);
  }

  cuda::HostLink link_;
  std::shared_ptr<cuda::DeviceWatch> watch_;
  std::unique_ptr<cuda::HostExchange> exchange_;
};

// Rows for and from each rank.
struct Counts {
  std::vector<int64_t> sends, receives;

  // rows(from, to) of all pairs of `ranks` ranks.
  template <class Rows>
  Counts(int ranks, int rank, const Rows& rows) {
    for (int peer = 0; peer < ranks; ++peer) {
      sends.push_back(rows(rank, peer));
      receives.push_back(rows(peer, rank));
    }
  }
  Tensor on(GpuRank& rank, const std::vector<int64_t>& counts) const {
    return rank.to_gpu(rank.tensor<int64_t>({std::ssize(counts)}, counts));
  }
};

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), static_cast<size_t>(b.bytes())) == 0;
}

// `in` and the rows after the last received one keep their bits.
template <class Rows>
void expect_exchanged(GpuRank& rank, Group& gpus, Group& cpus, int64_t width, DType dtype, const Rows& rows) {
  const Counts counts(rank.size(), rank.rank, rows);
  const int64_t spare = 3;
  const Tensor in = rank.own_normal({sum_of(counts.sends) + spare, width}, dtype, "rows"),
               out = rank.stream.empty({sum_of(counts.receives) + spare, width}, dtype);
  std::memset(out.raw(), 0xff, static_cast<size_t>(out.bytes()));
  const int64_t n = rank.size();
  cpus.all_to_all(rank.stream, out, rank.tensor<int64_t>({n}, counts.receives), in,
                  rank.tensor<int64_t>({n}, counts.sends));
  const Tensor gpu_in = rank.to_gpu(in), gpu_out = rank.poisoned_on_gpu(out.shape(), dtype);
  gpus.all_to_all(rank.gpu, gpu_out, counts.on(rank, counts.receives), gpu_in, counts.on(rank, counts.sends));
  EXPECT_TRUE(same_bits(rank.to_host(gpu_out), out)) << dtype << " rows of " << width;
  EXPECT_TRUE(same_bits(rank.to_host(gpu_in), in));
}

// Rows of 2 to 4096 bytes, aligned to 2, 4 and 16; counts of nothing, a few rows, many for one rank, and more slots
// than the rings have.
void expect_rows_of_all_sizes(GpuRank& rank) {
  ThroughHost gpus(rank);
  const auto cpus = rank.everyone("cpus");
  const int n = rank.size();
  const std::pair<int64_t, DType> kRows[] = {
      {1, DType::bf16}, {3, DType::f32}, {8, DType::bf16}, {1, DType::f64}, {2048, DType::bf16}};
  for (const auto& [width, dtype] : kRows) {
    const int64_t large = (int64_t{12} << 20) / (width * size_of(dtype));
    const auto exchanged = [&](const auto& rows) { expect_exchanged(rank, gpus, *cpus, width, dtype, rows); };
    exchanged([](int, int) { return 0; });
    exchanged([](int from, int to) { return (from * 3 + to * 5) % 7; });
    exchanged([](int from, int to) { return from == to ? 100 : 0; });
    exchanged([&](int from, int to) { return to == n - 1 ? 1000 + from : from; });
    exchanged([&](int from, int to) { return from == 0 && to == 1 ? large : 1; });
    exchanged([](int from, int to) { return 129 + from * to; });
  }
  const Tensor parts = rank.own_normal({n * 7, 3}, DType::f32, "parts"), all = rank.stream.empty_like(parts);
  cpus->all_to_all_equal(rank.stream, all, parts);
  const Tensor gpu_all = rank.poisoned_on_gpu(all.shape(), DType::f32);
  gpus.all_to_all_equal(rank.gpu, gpu_all, rank.to_gpu(parts));
  EXPECT_TRUE(same_bits(rank.to_host(gpu_all), all));
}

// Counts that change between replays, of a graph that was made once.
void expect_replays_with_the_counts_of_their_time(GpuRank& rank) {
  constexpr int64_t kRoom = 4000, kWidth = 33;
  ThroughHost gpus(rank);
  const auto cpus = rank.everyone("cpus");
  const int64_t n = rank.size();
  const Tensor in = rank.poisoned_on_gpu({kRoom, kWidth}, DType::f32),
               out = rank.poisoned_on_gpu(in.shape(), DType::f32);
  const Tensor sends = rank.gpu.zeros({n}, DType::i64), receives = rank.gpu.zeros({n}, DType::i64);
  gpus.all_to_all(rank.gpu, out, receives, in, sends);
  rank.gpu.wait();
  const auto graph = record(*rank.gpu.queue(), [&] { gpus.all_to_all(rank.gpu, out, receives, in, sends); });
  for (int time = 0; time < 4; ++time) {
    const Counts counts(rank.size(), rank.rank,
                        [&](int from, int to) { return time * (1 + (from + 2 * to + time) % 5) * 50; });
    const Tensor rows = rank.own_normal({kRoom, kWidth}, DType::f32, cat("rows ", time)),
                 expected = rank.stream.empty(rows.shape(), DType::f32);
    rank.gpu.write(in, rows.raw());
    rank.gpu.write(sends, counts.sends.data());
    rank.gpu.write(receives, counts.receives.data());
    graph->launch();
    const Tensor before = rank.to_host(out);
    std::memcpy(expected.raw(), before.raw(), static_cast<size_t>(expected.bytes()));  // what nobody sends stays
    cpus->all_to_all(rank.stream, expected, rank.tensor<int64_t>({n}, counts.receives), rows,
                     rank.tensor<int64_t>({n}, counts.sends));
    EXPECT_TRUE(same_bits(before, expected)) << "replay " << time;
  }
}

struct Start {
  int processes, threads;

  int ranks() const { return processes * threads; }
};
std::ostream& operator<<(std::ostream& out, const Start& of) {
  return out << of.processes << " x " << of.threads;
}

// Ranks share a GPU where there are fewer.
class HostExchangeOnGpus : public ::testing::TestWithParam<Start> {
 protected:
  void SetUp() override {
    if (std::getenv(testing::kFreshProcess) != nullptr) return;
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
    const int needed = (GetParam().ranks() + 1) / 2;
    if (cuda::devices() < needed) GTEST_SKIP() << needed << " GPUs are needed, " << cuda::devices() << " can be used";
  }
  std::vector<Ended> run(const std::function<void(GpuRank&)>& body, double deadline_seconds = 60) const {
    return on_gpu_processes({GetParam().processes, GetParam().threads, deadline_seconds}, [&](GpuRank& rank) {
      body(rank);
      return "";
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Starts, HostExchangeOnGpus,
                         ::testing::Values(Start{2, 1}, Start{1, 2}, Start{3, 1}, Start{2, 2}));

TEST_P(HostExchangeOnGpus, MovesRowsAsOnTheCpu) {
  expect_whole(run(expect_rows_of_all_sizes));
}

TEST_P(HostExchangeOnGpus, ReplaysTakeTheCountsOfTheirTime) {
  expect_whole(run(expect_replays_with_the_counts_of_their_time));
}

// A call on a side stream waits for the one before on the main stream: both count in the same rings.
TEST_P(HostExchangeOnGpus, CallsOnTwoStreamsComeOneAfterTheOther) {
  expect_whole(run([](GpuRank& rank) {
    ThroughHost gpus(rank);
    const int64_t n = rank.size();
    Stream beside(rank.gpu.device(), Arena::reserve_on_gpu(rank.gpu.device().index, int64_t{1} << 26), rank.pool,
                  int64_t{1} << 10);
    const Tensor in = rank.to_gpu(rank.own_normal({n * 4096, 64}, DType::f32, "rows"));
    const Tensor there = rank.gpu.empty_like(in), back = rank.gpu.empty_like(in);
    for (int time = 0; time < 5; ++time) {
      gpus.all_to_all_equal(rank.gpu, there, in);
      beside.follow(rank.gpu);
      gpus.all_to_all_equal(beside, back, there);
      rank.gpu.follow(beside);
    }
    EXPECT_TRUE(same_bits(rank.to_host(back), rank.to_host(in)));
    beside.wait();
  }));
}

TEST(HostExchangesOnGpus, NameARankThatStaysAway) {
  if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  ThreadWorld world(2, {.deadline_seconds = 2});
  const std::string message = test::message_of<CommError>([&] {
    on_gpus(world, [](GpuRank& rank) {
      ThroughHost gpus(rank);
      const Tensor x = rank.gpu.zeros({2, 4}, DType::f32), y = rank.gpu.empty_like(x);
      gpus.all_to_all_equal(rank.gpu, y, x);
      rank.gpu.wait();
      if (rank.rank != 1) gpus.all_to_all_equal(rank.gpu, y, x);
      rank.gpu.wait();
      rank.everyone("end")->barrier(rank.stream);
    });
  });
  EXPECT_THAT(message, AnyOf(HasSubstr("rank 1 did not send its rows through the host's memory within 2 s"),
                             HasSubstr("did not finish within 2 s"), HasSubstr("did not reach barrier within 2 s")));
}

TEST(HostExchangesOnGpus, RefuseCountsThatLeadOutOfTheTensors) {
  if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{3, 2}, std::vector<int64_t>{-1, 1}}) {
    const std::string message = test::message_of<CommError>([&] {
      on_gpus(2, [&](GpuRank& rank) {
        ThroughHost gpus(rank);
        const Tensor x = rank.gpu.zeros({4, 4}, DType::f32), y = rank.gpu.zeros({4, 4}, DType::f32),
                     counts = rank.to_gpu(rank.tensor<int64_t>({2}, wrong));
        gpus.all_to_all(rank.gpu, y, counts, x, counts);
        rank.gpu.wait();
      });
    });
    EXPECT_THAT(message, HasSubstr("sends or expects more rows than its tensors hold"));
  }
}

// A process is killed while the others' kernels wait for its rows.
TEST(HostExchangesOnGpus, EndWhenAProcessIsKilled) {
  if (std::getenv(testing::kFreshProcess) == nullptr && cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  using Clock = std::chrono::steady_clock;
  const auto ended = on_gpu_processes({2, 1, 30}, [](GpuRank& rank) {
    ThroughHost gpus(rank);
    const Tensor x = rank.gpu.zeros({1 << 16, 64}, DType::f32), y = rank.gpu.empty_like(x);
    const auto begin = Clock::now();
    try {
      for (int call = 0; call < 1000; ++call) {
        gpus.all_to_all_equal(rank.gpu, y, x);
        if (rank.rank == 0 && call == 20) ::raise(SIGKILL);
      }
      rank.gpu.wait();
    } catch (...) {
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
      throw;
    }
    return "it was not told";
  });
  EXPECT_TRUE(ended[0].killed);
  EXPECT_EQ(ended[1].code, static_cast<int>(ExitCode::rank_lost)) << ended[1].said;
  EXPECT_THAT(ended[1].said, HasSubstr("is lost"));
}

}  // namespace
}  // namespace witan
