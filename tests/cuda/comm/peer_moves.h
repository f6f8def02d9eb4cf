// Moves of rows through the peer memory of GPUs, compared with the same moves by plain loops on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "moe/moe_support.h"
#include "support/gpu_world.h"
#include "support/thread_peers.h"
#include "support/thread_world.h"
#include "witan/comm/peer_memory.h"

namespace witan::testing {

struct MoveSizes {
  int64_t T, K, E, D;

  int64_t assignments() const { return T * K; }
  int64_t local(int ranks) const { return E / ranks; }
  int64_t capacity(int ranks) const { return ranks * T * std::min(K, local(ranks)); }
  std::string text() const { return cat("T=", T, " K=", K, " E=", E, " D=", D); }
};

inline const std::vector<MoveSizes> kMoveSizes = {{13, 2, 8, 64},   // rows of several packs
                                                  {77, 1, 4, 520},  // more than a lane's loads; not a power of two
                                                  {5, 4, 4, 7},     // rows that fit no pack
                                                  {40, 36, 40, 8},  // more assignments than lanes
                                                  {1, 1, 16, 1},   {0, 2, 8, 16}};

// The send order of a rank's random ids, on the host.
struct Sends {
  Sends(Rank& on, int rank, const MoveSizes& sizes) {
    const auto ids = random_ids(sizes.T, sizes.K, sizes.E, cat("ids ", rank));
    std::vector<int64_t> of_slot(ids.size(), -1), of_row;
    std::vector<int64_t> histogram(static_cast<size_t>(sizes.E));
    for (int32_t e = 0; e < sizes.E; ++e)
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != e || i % 11 == 3) continue;  // some assignments are dropped
        of_slot[i] = static_cast<int64_t>(of_row.size());
        of_row.push_back(static_cast<int64_t>(i));
        ++histogram[static_cast<size_t>(e)];
      }
    of_row.resize(ids.size(), -1);
    slot = on.tensor<int64_t>({sizes.assignments()}, of_slot);
    source = on.tensor<int64_t>({sizes.assignments()}, of_row);
    counts = on.tensor<int64_t>({sizes.E}, histogram);
  }
  Tensor slot, source, counts;
};

// A rank's tokens and weights.
inline Tensor tokens_of(Rank& on, int rank, const MoveSizes& sizes, DType dtype) {
  return on.normal({sizes.T, sizes.D}, dtype, cat("x of rank ", rank));
}
inline Tensor weights_of(Rank& on, int rank, const MoveSizes& sizes, DType dtype) {
  return on.normal({sizes.assignments()}, accumulator(dtype), cat("w of rank ", rank));
}

// The result of one rank: its groups and places, and the bytes of received rows and weights, and of the sums and
// weights sent back.
struct Moved {
  std::vector<std::vector<int64_t>> places;  // begin, count, source_begin, source_count, remote
  std::vector<std::string> tensors;
};

inline std::string bytes_in(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

// The results of all ranks of a group of this size, computed by threads on the CPU.
inline std::vector<Moved> moved_on_cpus(int ranks, DType dtype, const MoveSizes& sizes) {
  std::vector<Moved> all(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](ThreadRank& rank) {
    const auto group = rank.everyone();
    ThreadPeers peers(*group, *group);
    Stream& stream = rank.stream;
    const Sends sends(rank, rank.rank, sizes);
    const int64_t local = sizes.local(ranks), N = sizes.assignments(), capacity = sizes.capacity(ranks);
    const Tensor begin = stream.zeros({local}, DType::i64), count = stream.zeros({local}, DType::i64),
                 from = stream.zeros({ranks, local}, DType::i64), of = stream.zeros({ranks, local}, DType::i64),
                 remote = stream.zeros({N}, DType::i64);
    peers.place_rows(stream, {begin, count, from, of}, remote, sends.counts, capacity);
    const Tensor pool = stream.empty({capacity, sizes.D}, dtype),
                 weights = stream.empty({capacity}, accumulator(dtype));
    std::memset(pool.raw(), 0xff, static_cast<size_t>(pool.bytes()));
    std::memset(weights.raw(), 0xff, static_cast<size_t>(weights.bytes()));
    peers.push_rows(stream, {pool, weights},
                    {tokens_of(rank, rank.rank, sizes, dtype), weights_of(rank, rank.rank, sizes, dtype)}, sends.source,
                    sizes.K, remote);
    const Tensor y = stream.empty({sizes.T, sizes.D}, dtype), back = stream.empty({N}, accumulator(dtype));
    peers.pull_rows(stream, {y, back}, {pool, weights}, sends.slot, remote);
    Moved& own = all[static_cast<size_t>(rank.rank)];
    for (const Tensor& one : {begin, count, from, of, remote}) own.places.push_back(one.to_vector<int64_t>());
    for (const Tensor& one : {pool, weights, y, back}) own.tensors.push_back(bytes_in(one));
  });
  return all;
}

// The moves of all sizes and dtypes, and their results.
struct MoveCase {
  DType dtype;
  MoveSizes sizes;
  std::vector<Moved> moved;  // of every rank
};
inline std::vector<MoveCase> cases_on_cpus(int ranks) {
  std::vector<MoveCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const MoveSizes& sizes : kMoveSizes) cases.push_back({dtype, sizes, moved_on_cpus(ranks, dtype, sizes)});
  return cases;
}

// Expects the same bits on the rank's GPU; then moves rows alone, and weights alone.
inline void expect_moved(GpuRank& rank, PeerMemory& peers, const MoveCase& expects) {
  const auto& [dtype, sizes, moved] = expects;
  const Moved& expected = moved[static_cast<size_t>(rank.rank)];
  SCOPED_TRACE(cat(dtype, " ", sizes.text(), " on rank ", rank.rank));
  const DType sums = accumulator(dtype);
  const int64_t R = rank.size(), local = sizes.local(rank.size()), N = sizes.assignments(),
                capacity = sizes.capacity(rank.size());
  const Sends sends(rank, rank.rank, sizes);
  const auto numbers = [&](const Shape& shape) { return rank.to_gpu(rank.stream.zeros(shape, DType::i64)); };
  const Tensor begin = numbers({local}), count = numbers({local}), from = numbers({R, local}), of = numbers({R, local}),
               remote = numbers({N});
  peers.place_rows(rank.gpu, {begin, count, from, of}, remote, rank.to_gpu(sends.counts), capacity);
  const Tensor places[] = {begin, count, from, of, remote};
  for (size_t i = 0; i < expected.places.size(); ++i)
    EXPECT_EQ(rank.to_host(places[i]).to_vector<int64_t>(), expected.places[i]) << "places " << i;

  const Tensor pool = rank.poisoned_on_gpu({capacity, sizes.D}, dtype),
               weights = rank.poisoned_on_gpu({capacity}, sums);
  peers.push_rows(
      rank.gpu, {pool, weights},
      {rank.to_gpu(tokens_of(rank, rank.rank, sizes, dtype)), rank.to_gpu(weights_of(rank, rank.rank, sizes, dtype))},
      rank.to_gpu(sends.source), sizes.K, remote);
  const auto same_bits = [&](const Tensor& gpu, size_t which) {
    return bytes_in(rank.to_host(gpu)) == expected.tensors[which];
  };
  EXPECT_TRUE(same_bits(pool, 0)) << "rows, and what is between them";
  EXPECT_TRUE(same_bits(weights, 1));

  const Tensor slot = rank.to_gpu(sends.slot);
  const Tensor y = rank.poisoned_on_gpu({sizes.T, sizes.D}, dtype), back = rank.poisoned_on_gpu({N}, sums);
  peers.pull_rows(rank.gpu, {y, back}, {pool, weights}, slot, remote);
  EXPECT_TRUE(same_bits(y, 2)) << "sums in the order of k";
  EXPECT_TRUE(same_bits(back, 3));
  const Tensor rows_only = rank.poisoned_on_gpu({sizes.T, sizes.D}, dtype),
               weights_only = rank.poisoned_on_gpu({N}, sums);
  peers.pull_rows(rank.gpu, {rows_only, {}}, {pool, {}}, slot, remote);
  peers.pull_rows(rank.gpu, {{}, weights_only}, {{}, weights}, slot, remote);
  EXPECT_TRUE(same_bits(rows_only, 2));
  EXPECT_TRUE(same_bits(weights_only, 3));
}

// Replays one recorded step, each time with other tokens: sends follow each other without the host, and epochs increase
// over calls and replays. Called by every rank of `gpus` together.
inline void expect_replays_move_the_rows_of_their_time(GpuRank& rank, GpuPeerGroup& gpus) {
  const MoveSizes sizes{33, 2, 8, 256};
  const Sends sends(rank, rank.rank, sizes);
  const int64_t R = rank.size(), local = sizes.local(rank.size()), N = sizes.assignments(), capacity = R * sizes.T * 2;
  const auto numbers = [&](const Shape& shape) { return rank.to_gpu(rank.stream.zeros(shape, DType::i64)); };
  const Tensor begin = numbers({local}), count = numbers({local}), from = numbers({R, local}), of = numbers({R, local}),
               remote = numbers({N});
  const Tensor counts = rank.to_gpu(sends.counts), source = rank.to_gpu(sends.source), slot = rank.to_gpu(sends.slot);
  const Tensor x = rank.gpu.empty({sizes.T, sizes.D}, DType::f32), y = rank.gpu.empty(x.shape(), DType::f32),
               pool = rank.gpu.empty({capacity, sizes.D}, DType::f32);
  const auto step = [&] {
    PeerMemory& peers = *gpus.peers();
    peers.place_rows(rank.gpu, {begin, count, from, of}, remote, counts, capacity);
    peers.push_rows(rank.gpu, {pool, {}}, {x, {}}, source, sizes.K, remote);
    gpus.exchange()->barrier(rank.gpu);
    peers.pull_rows(rank.gpu, {y, {}}, {pool, {}}, slot, remote);
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
}

}  // namespace witan::testing
