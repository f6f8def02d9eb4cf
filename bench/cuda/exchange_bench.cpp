// Rows of 1 KiB between GPUs: pushed to random places in peers' memory, pulled from there, and NCCL's all-to-all of as
// many contiguous bytes. GB/s are of the bytes that leave a GPU for others; flags and barriers are part of the time.
//   cuda_exchange_bench [RANKS]
#include <cstdio>
#include <cstring>

#include "gpu_ranks.h"

namespace witan::bench {
namespace {

constexpr int64_t kRowBytes = 1024, kRowFloats = kRowBytes / 4;
constexpr int kCalls = 20, kSamples = 15;  // calls of a graph; replays of it

class Exchange {
 public:
  Exchange(GpuRank& on, const RandomPlaces& places) : on_(on), places_(places), rows_(places.rows) {
    std::vector<int64_t> all(static_cast<size_t>(rows_));
    std::iota(all.begin(), all.end(), 0);
    order_ = on.integers(all);
    remote_ = on.integers(places.remote(on.rank));
    x_ = on.stream.zeros({rows_, kRowFloats}, DType::f32);
    pool_ = on.stream.zeros({rows_, kRowFloats}, DType::f32);
  }

  void push() { on_.peers().push_rows(on_.stream, {pool_, {}}, {x_, {}}, order_, 1, remote_); }
  void pull() { on_.peers().pull_rows(on_.stream, {x_, {}}, {pool_, {}}, order_, remote_); }
  void all_to_all() { on_.group->all_to_all_equal(on_.stream, pool_, x_); }
  void barrier() { on_.peers().barrier(on_.stream); }

  // Seconds of one call: the median over replays.
  template <class Call>
  double time(const Call& call) {
    call();
    on_.stream.wait();
    const auto graph = record(on_.stream, [&] {
      for (int i = 0; i < kCalls; ++i) call();
    });
    on_.host->barrier(on_.host_stream);
    std::vector<double> seconds = cuda::time_calls(*on_.stream.queue(), kSamples, [&] { graph->launch(); });
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2] / kCalls;
  }

  // Row i holds rank * rows + i everywhere; after a push each row of the pool tells whence it came.
  void check() {
    std::vector<float> values(static_cast<size_t>(rows_ * kRowFloats));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(on_.rank * rows_ + static_cast<int64_t>(i) / kRowFloats);
    on_.stream.write(x_, values.data());
    push();
    on_.stream.read(values.data(), pool_);
    const auto sources = places_.sources(on_.rank);
    for (size_t i = 0; i < values.size(); ++i)
      require<DeviceError>(values[i] == static_cast<float>(sources[i / kRowFloats]), "row ", i / kRowFloats, " holds ",
                           values[i], ", expected ", sources[i / kRowFloats]);
    pull();
    on_.stream.read(values.data(), x_);
    for (size_t i = 0; i < values.size(); ++i)
      require<DeviceError>(values[i] == static_cast<float>(on_.rank * rows_ + static_cast<int64_t>(i) / kRowFloats),
                           "row ", i / kRowFloats, " did not come back");
  }

 private:
  GpuRank& on_;
  const RandomPlaces& places_;
  int64_t rows_;
  Tensor order_, remote_, x_, pool_;
};

void measure(GpuRank& on) {
  for (const int64_t megabytes : {4, 16, 64, 256}) {
    const RandomPlaces places(on.size, megabytes * 1'000'000 / kRowBytes / on.size * on.size);
    Exchange exchange(on, places);
    if (megabytes == 4) exchange.check();
    const double push = exchange.time([&] { exchange.push(); }), pull = exchange.time([&] { exchange.pull(); }),
                 nccl = exchange.time([&] { exchange.all_to_all(); }),
                 barrier = exchange.time([&] { exchange.barrier(); });
    if (on.rank != 0) continue;
    const auto leaving = static_cast<double>(places.leaving(0) * kRowBytes);
    const double equal = static_cast<double>(places.rows * kRowBytes) * (on.size - 1) / on.size;
    std::printf(
        "%6lld MB  %7.1f MB leave | push %7.1f us %5.0f GB/s | pull %7.1f us %5.0f GB/s | NCCL %7.1f us %5.0f "
        "GB/s | barrier %4.1f us\n",
        static_cast<long long>(megabytes), leaving / 1e6, push * 1e6, leaving / push / 1e9, pull * 1e6,
        leaving / pull / 1e9, nccl * 1e6, equal / nccl / 1e9, barrier * 1e6);
    std::fflush(stdout);
  }
}

int main_of(int argc, char** argv) {
  try {
    const int ranks = argc > 1 ? std::stoi(argv[1]) : cuda::devices();
    require<UsageError>(ranks >= 2 && ranks <= cuda::devices(), ranks, " ranks need a GPU each, and two at least; ",
                        cuda::devices(), " can be used. ", cuda::why_none());
    std::printf("%d GPUs, rows of 1 KiB at random places, MB per GPU\n", ranks);
    ThreadWorld world(ranks, {.deadline_seconds = 30});
    world.run([&](int rank) {
      GpuRank on(world, rank, int64_t{1} << 30);
      measure(on);
    });
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace witan::bench

int main(int argc, char** argv) {
  witan::bench::load_kernels_at_once();
  return witan::bench::main_of(argc, argv);
}
