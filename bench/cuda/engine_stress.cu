// Stress test of multi-GPU steps: one thread and GPU per rank, each replaying a CUDA graph of kernels, NCCL
// collectives, device barriers and pushes of rows into peers' memory, thousands of times. Every value is checked.
//   cuda_engine_stress [--ranks N] [--replays N] [--abort-at REPLAY]
// With --abort-at the last rank fails at that replay: the others must end at once, with its error and exit code 7.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "witan/base/process.h"
#include "witan/base/threads/threads.h"
#include "witan/comm/cuda.h"
#include "witan/comm/cuda/peer_exchange.h"
#include "witan/comm/threads/threads.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::bench {
namespace {

// Loads kernels before their first use: loading waits for the GPU, which may be waiting for another rank. Must be the
// first use of CUDA.
void load_kernels_at_once() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

struct GpuRank {
  GpuRank(ThreadWorld& world, int index, int64_t arena_bytes)
      : rank(index),
        size(world.size()),
        pool(1),
        stream({Device::Kind::cuda, index}, Arena::reserve_on_gpu(index, arena_bytes), pool),
        host_stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 20), pool) {
    std::vector<int> everyone(static_cast<size_t>(size));
    std::iota(everyone.begin(), everyone.end(), 0);
    host = world.group(rank, everyone, "host");
    watch = cuda::watch(stream, *host);
    group = cuda::make_group(world.group(rank, everyone, "expert"), stream, watch, {Sums::fast, PeerAccess::wanted});
    require<DeviceError>(group->peers() != nullptr, "these GPUs do not reach each other's memory");
  }
  cuda::PeerExchange& peers() { return static_cast<cuda::PeerExchange&>(*group->peers()); }
  Tensor integers(const std::vector<int64_t>& values) {
    const Tensor out = stream.empty({static_cast<int64_t>(values.size())}, DType::i64);
    stream.write(out, values.data());
    return out;
  }

  const int rank, size;
  ThreadPool pool;
  Stream stream, host_stream;
  std::unique_ptr<HostGroup> host;
  std::shared_ptr<cuda::DeviceWatch> watch;
  std::unique_ptr<Group> group;
};

// Row i of rank r is sent to a random row of a random rank; every row of every receive buffer gets one.
struct RandomPlaces {
  RandomPlaces(int ranks, int64_t rows_of_each) : rows(rows_of_each), to(static_cast<size_t>(ranks * rows)), from(to) {
    std::iota(to.begin(), to.end(), 0);
    std::ranges::shuffle(to, std::mt19937_64(7));
    for (size_t i = 0; i < to.size(); ++i) from[static_cast<size_t>(to[i])] = static_cast<int64_t>(i);
  }
  // Indexed as PeerMemory counts places.
  std::vector<int64_t> remote(int rank) const {
    std::vector<int64_t> out(of(to, rank));
    for (int64_t& place : out) place = place / rows * PeerMemory::kRank + place % rows;
    return out;
  }
  // For each row of a rank's receive buffer, its source: rank * rows + i.
  std::vector<int64_t> sources(int rank) const { return of(from, rank); }
  int64_t rows;
  std::vector<int64_t> to, from;

 private:
  std::vector<int64_t> of(const std::vector<int64_t>& all, int rank) const {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(rank * rows);
    return {begin, begin + static_cast<ptrdiff_t>(rows)};
  }
};

std::unique_ptr<Graph> record(Stream& stream, const auto& work) {
  stream.queue()->begin_recording();
  try {
    work();
  } catch (...) {
    try {
      stream.queue()->end_recording();
    } catch (const DeviceError&) {  // the error that broke the recording is being raised
    }
    throw;
  }
  return stream.queue()->end_recording();
}

constexpr int64_t kElements = 1 << 20;              // 4 MiB, for the all-reduce and for the all-to-all
constexpr int64_t kRows = 16384, kRowFloats = 256;  // 16 MiB in rows of 1 KiB

struct Options {
  int ranks = cuda::devices();
  int64_t replays = 10000, abort_at = -1;
};

__device__ float value_of(int64_t row, int64_t replay) {
  return static_cast<float>((row * 131 + replay * 7) % 65536);
}

struct Buffers {
  float *summed, *sent, *received, *rows, *pool;
  const int64_t* sources;  // [kRows]
  unsigned long long *replay, *wrong;
  int rank, ranks;
};

__global__ void count_replay(Buffers b) {
  ++*b.replay;
}

__global__ void fill(Buffers b) {
  const auto replay = static_cast<int64_t>(*b.replay);
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = first; i < kElements; i += step) {
    b.summed[i] = static_cast<float>((b.rank + i + replay) % 1024);
    b.sent[i] = value_of(b.rank * kElements + i, replay);
  }
  for (int64_t i = first; i < kRows * kRowFloats; i += step)
    b.rows[i] = value_of(b.rank * kRows + i / kRowFloats, replay) + static_cast<float>(i % kRowFloats);
}

__global__ void check(Buffers b) {
  const auto replay = static_cast<int64_t>(*b.replay);
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, step = int64_t{gridDim.x} * blockDim.x;
  const int64_t part = kElements / b.ranks;
  unsigned long long wrong = 0;
  for (int64_t i = first; i < kElements; i += step) {
    float sum = 0;
    for (int rank = 0; rank < b.ranks; ++rank) sum += static_cast<float>((rank + i + replay) % 1024);
    wrong += b.summed[i] != sum;  // integers, so any order of summation is exact
    if (i < part * b.ranks) wrong += b.received[i] != value_of(i / part * kElements + b.rank * part + i % part, replay);
  }
  for (int64_t i = first; i < kRows * kRowFloats; i += step)
    wrong += b.pool[i] != value_of(b.sources[i / kRowFloats], replay) + static_cast<float>(i % kRowFloats);
  if (wrong != 0) atomicAdd(b.wrong, wrong);
}

class Stress {
 public:
  Stress(ThreadWorld& world, int rank, const RandomPlaces& places)
      : on_(world, rank, Stream::kScratchBytes + (int64_t{256} << 20)),
        summed_(floats(kElements)),
        sent_(floats(kElements)),
        received_(floats(kElements)),
        rows_(floats(kRows * kRowFloats).reshape({kRows, kRowFloats})),
        pool_(floats(kRows * kRowFloats).reshape({kRows, kRowFloats})),
        remote_(on_.integers(places.remote(rank))),
        sources_(on_.integers(places.sources(rank))),
        counters_(on_.integers({0, 0})) {
    std::vector<int64_t> all(kRows);
    std::iota(all.begin(), all.end(), 0);
    order_ = on_.integers(all);
  }

  // Microseconds per replay.
  double run(const Options& options) {
    queue_step();  // NCCL connects
    on_.stream.wait();
    const auto graph = record(on_.stream, [&] { queue_step(); });
    on_.host->barrier(on_.host_stream);
    const Stopwatch watch;
    for (int64_t replay = 1; replay <= options.replays; ++replay) {
      require<CommError>(replay != options.abort_at || on_.rank + 1 != on_.size, "gives up at replay ", replay,
                         ", as requested");
      graph->launch();
      if (replay % 32 == 0) on_.stream.wait();
    }
    on_.stream.wait();
    const double seconds = watch.seconds();
    check_counters(options.replays + 1);
    return 1e6 * seconds / static_cast<double>(options.replays);
  }

 private:
  Tensor floats(int64_t count) { return on_.stream.empty({count}, DType::f32); }

  void queue_step() {
    Stream& s = on_.stream;
    Group& group = *on_.group;
    auto* counters = reinterpret_cast<unsigned long long*>(counters_.data<int64_t>());
    const Buffers b{summed_.data<float>(),
                    sent_.data<float>(),
                    received_.data<float>(),
                    rows_.data<float>(),
                    pool_.data<float>(),
                    sources_.data<int64_t>(),
                    counters,
                    counters + 1,
                    on_.rank,
                    on_.size};
    const int64_t exchanged = kElements / on_.size * on_.size;
    count_replay<<<1, 1, 0, cuda::native(s)>>>(b);
    fill<<<132, 512, 0, cuda::native(s)>>>(b);
    group.all_reduce(s, summed_);
    on_.peers().barrier(s);
    group.all_to_all_equal(s, received_.narrow(0, 0, exchanged), sent_.narrow(0, 0, exchanged));
    on_.peers().barrier(s);
    on_.peers().push_rows(s, {pool_, {}}, {rows_, {}}, order_, 1, remote_);
    on_.peers().barrier(s);
    check<<<132, 512, 0, cuda::native(s)>>>(b);
    s.queue()->check("a step");
  }

  void check_counters(int64_t steps) {
    int64_t counters[2];
    on_.stream.read(counters, counters_);
    require<DeviceError>(counters[0] == steps && counters[1] == 0, counters[0], " steps were done of ", steps,
                         ", with ", counters[1], " wrong values");
  }

  GpuRank on_;
  Tensor summed_, sent_, received_, rows_, pool_, remote_, sources_, counters_, order_;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const int64_t value = std::stoll(argv[i + 1]);
    if (name == "--ranks")
      options.ranks = static_cast<int>(value);
    else if (name == "--replays")
      options.replays = value;
    else if (name == "--abort-at")
      options.abort_at = value;
    else
      throw UsageError("usage: cuda_engine_stress [--ranks N] [--replays N] [--abort-at REPLAY]");
  }
  require<UsageError>(options.ranks >= 2 && options.ranks <= cuda::devices(), options.ranks,
                      " ranks need a GPU each, and two at least; ", cuda::devices(), " can be used. ",
                      cuda::why_none());
  return options;
}

int main_of(int argc, char** argv) {
  const Stopwatch watch;
  try {
    const Options options = parse(argc, argv);
    const RandomPlaces places(options.ranks, kRows);
    std::vector<double> microseconds(static_cast<size_t>(options.ranks));
    ThreadWorld world(options.ranks, {.deadline_seconds = 30});
    world.run([&](int rank) {
      Stress stress(world, rank, places);
      microseconds[static_cast<size_t>(rank)] = stress.run(options);
    });
    for (int rank = 0; rank < options.ranks; ++rank)
      std::printf("rank %d: %lld replays, %.1f us each, all values right\n", rank,
                  static_cast<long long>(options.replays), microseconds[static_cast<size_t>(rank)]);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "error after %.1f s: %s\n", watch.seconds(), error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace witan::bench

int main(int argc, char** argv) {
  witan::bench::load_kernels_at_once();
  return witan::bench::main_of(argc, argv);
}
