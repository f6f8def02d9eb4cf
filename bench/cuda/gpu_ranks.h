// What benchmarks of several GPUs share: a rank of each, its groups, graphs, and rows that go to random places.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/comm/cuda.h"
#include "witan/comm/cuda/peer_exchange.h"
#include "witan/comm/threads/threads.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::bench {

// A kernel is loaded before it is first needed: loading waits for the GPU, which may be waiting for another rank. To be
// called before anything else of CUDA.
inline void load_kernels_at_once() {
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

// Row i of rank r goes to one of all ranks' rows, drawn at random; every row of every pool gets one.
struct RandomPlaces {
  RandomPlaces(int ranks, int64_t rows_of_each) : rows(rows_of_each), to(static_cast<size_t>(ranks * rows)), from(to) {
    std::iota(to.begin(), to.end(), 0);
    std::ranges::shuffle(to, std::mt19937_64(7));
    for (size_t i = 0; i < to.size(); ++i) from[static_cast<size_t>(to[i])] = static_cast<int64_t>(i);
  }
  // As PeerMemory counts places.
  std::vector<int64_t> remote(int rank) const {
    std::vector<int64_t> out(of(to, rank));
    for (int64_t& place : out) place = place / rows * PeerMemory::kRank + place % rows;
    return out;
  }
  // rank * rows + i of the row that comes to each row of a rank's pool.
  std::vector<int64_t> sources(int rank) const { return of(from, rank); }
  int64_t leaving(int rank) const {
    return std::ranges::count_if(of(to, rank), [&](int64_t place) { return place / rows != rank; });
  }

  int64_t rows;
  std::vector<int64_t> to, from;

 private:
  std::vector<int64_t> of(const std::vector<int64_t>& all, int rank) const {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(rank * rows);
    return {begin, begin + static_cast<ptrdiff_t>(rows)};
  }
};

inline std::unique_ptr<Graph> record(Stream& stream, const auto& work) {
  stream.queue()->begin_recording();
  try {
    work();
  } catch (...) {
    try {
      stream.queue()->end_recording();
    } catch (const DeviceError&) {  // what broke the recording is on its way
    }
    throw;
  }
  return stream.queue()->end_recording();
}

}  // namespace witan::bench
