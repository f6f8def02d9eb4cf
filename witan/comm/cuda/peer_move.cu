// Rows pushed into the memory of peers, and pulled from it: a warp per row, 16 bytes per access.
#include "witan/comm/cuda/kernels.h"
#include "witan/comm/cuda/peer_device.cuh"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::cuda {
namespace {

using kernels::cuda::Acc;
using kernels::cuda::convert;
using kernels::cuda::Pack;

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kBeside = 3;  // blocks that a multiprocessor can hold: waiting ones leave room for others' work
constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ int rank_of(int64_t place) {
  return static_cast<int>(place >> PeerMemory::kRankBits);
}
__device__ __forceinline__ int64_t row_of(int64_t place) {
  return place & (PeerMemory::kRank - 1);
}

template <class Unit, class Weight>
struct Push {
  RankBuffers to;
  const Unit* rows;       // null: weights alone
  const Weight* weights;  // null: rows alone
  const int64_t *source, *remote;
  uint32_t count, topk;  // send rows; assignments of a token
  int64_t units;         // of a row
};

constexpr int kFlight = 2;  // loads of a lane on their way

template <class Unit>
__device__ __forceinline__ void load_units(Unit (&part)[kFlight], const Unit* from, int64_t begin, int64_t end) {
#pragma unroll
  for (int i = 0; i < kFlight; ++i)
    if (begin + 32 * i < end) part[i] = from[begin + 32 * i];
}
template <class Unit>
__device__ __forceinline__ void store_units(Unit* to, const Unit (&part)[kFlight], int64_t begin, int64_t end) {
#pragma unroll
  for (int i = 0; i < kFlight; ++i)
    if (begin + 32 * i < end) to[begin + 32 * i] = part[i];
}

// A row that a warp sends, and what its lanes have loaded of it.
template <class Unit>
struct Sent {
  int64_t place;       // -1: nowhere
  uint32_t source;     // assignment
  Unit part[kFlight];  // the lane's first units
};

template <class Unit, class Weight>
__device__ __forceinline__ const Unit* row_of(const Push<Unit, Weight>& args, uint32_t source) {
  return args.rows + static_cast<int64_t>(source / args.topk) * args.units;
}

template <class Unit, class Weight>
__device__ __forceinline__ void load_row(Sent<Unit>& row, const Push<Unit, Weight>& args, uint32_t i) {
  row.place = -1;
  if (i >= args.count) return;
  const int64_t source = args.source[i], place = args.remote[i];
  if (source < 0 || place < 0) return;
  row.place = place;
  row.source = static_cast<uint32_t>(source);
  if (args.rows) load_units(row.part, row_of(args, row.source), threadIdx.x % 32, args.units);
}

template <class Unit, class Weight>
__device__ __forceinline__ void store_row(Sent<Unit>& row, const Push<Unit, Weight>& args) {
  if (row.place < 0) return;
  const int rank = rank_of(row.place);
  if (args.rows) {
    Unit* to = reinterpret_cast<Unit*>(args.to.rows[rank]) + row_of(row.place) * args.units;
    int64_t begin = threadIdx.x % 32;
    store_units(to, row.part, begin, args.units);
#pragma unroll 1
    for (begin += 32 * kFlight; begin < args.units; begin += 32 * kFlight) {
      load_units(row.part, row_of(args, row.source), begin, args.units);
      store_units(to, row.part, begin, args.units);
    }
  }
  if (args.weights && threadIdx.x % 32 == 0)
    reinterpret_cast<Weight*>(args.to.weights[rank])[row_of(row.place)] = args.weights[row.source];
}

// A warp loads its next row while it stores one, and its first while ranks wait for each other.
template <class Unit, class Weight>
__global__ void __launch_bounds__(kThreads, kBeside)
    push_kernel(const __grid_constant__ Peers peers, const __grid_constant__ Push<Unit, Weight> args) {
  const uint32_t epoch = epoch_of_move(peers);
  come(peers, epoch);
  // Send rows are sorted by destination. Neighbouring warps take rows far apart, and ranks begin with different ones,
  // so that all links are busy at any time.
  const uint32_t ranks = static_cast<uint32_t>(peers.size), part = (args.count + ranks - 1) / ranks;
  const auto row_at = [&](uint32_t j) {
    return j < part * ranks ? (j + static_cast<uint32_t>(peers.rank)) % ranks * part + j / ranks : args.count;
  };
  uint32_t j = blockIdx.x * kWarps + threadIdx.x / 32;
  Sent<Unit> row;
  load_row(row, args, row_at(j));
  const bool came = all_came(peers, epoch);
  while (came && j < part * ranks) {
    j += gridDim.x * kWarps;
    Sent<Unit> next;
    load_row(next, args, row_at(j));
    store_row(row, args);
    row = next;
  }
  leave(peers, epoch, came);
}

template <class T>
struct Pull {
  RankBuffers from;
  T* rows;          // null: weights alone
  Acc<T>* weights;  // null: rows alone
  const int64_t *slot, *remote;
  int64_t tokens, packs;  // packs of a row
  int topk;
};

// The place of assignment k of token t, for the lane's k; -1: none.
template <class T>
__device__ __forceinline__ int64_t place_of(const Pull<T>& args, int64_t t, int k) {
  if (k >= args.topk) return -1;
  const int64_t slot = args.slot[t * args.topk + k];
  return slot < 0 ? -1 : args.remote[slot];
}

// Adds up to 32 rows, whose places the warp's lanes hold, to a pack of each lane.
template <class T, int N>
__device__ __forceinline__ void add_rows(const Pull<T>& args, int64_t places, int count, int64_t pack, bool active,
                                         Acc<T> (&sums)[N]) {
  constexpr int kFlight = 2;
  for (int k = 0; k < count; k += kFlight) {
    Pack<T, N> in[kFlight];
    bool adds[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const int64_t place = __shfl_sync(kAll, places, (k + i) % 32);
      adds[i] = active && k + i < count && place >= 0;
      if (!adds[i]) continue;
      const T* pool = reinterpret_cast<const T*>(args.from.rows[rank_of(place)]);
      in[i] = load_far<T, N>(pool + (row_of(place) * args.packs + pack) * N);
    }
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      if (!adds[i]) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] += convert<Acc<T>>(in[i].at[j]);
    }
  }
}

// `places` are those of the token's first 32 rows, one of each lane.
template <class T, int N>
__device__ __forceinline__ void sum_token(const Pull<T>& args, int64_t t, int64_t places) {
  const int lane = threadIdx.x % 32;
  for (int64_t begin = 0; begin < args.packs; begin += 32) {
    const bool active = begin + lane < args.packs;
    Acc<T> sums[N] = {};
    for (int k = 0; k < args.topk; k += 32) {
      if (args.topk > 32) places = place_of(args, t, k + lane);
      add_rows<T, N>(args, places, min(32, args.topk - k), begin + lane, active, sums);
    }
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = convert<T>(sums[j]);
    if (active) kernels::cuda::store_pack<T, N>(args.rows + (t * args.packs + begin + lane) * N, out);
  }
}

// A warp looks up a token's places before it needs them: its first token's while ranks wait for each other.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pull_kernel(const __grid_constant__ Peers peers, const __grid_constant__ Pull<T> args) {
  const uint32_t epoch = epoch_of_move(peers);
  come(peers, epoch);
  const int lane = threadIdx.x % 32;
  const auto places_of = [&](int64_t t) { return t < args.tokens ? place_of(args, t, lane) : -1; };
  int64_t t = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32, next = places_of(t);
  const bool came = all_came(peers, epoch);
  while (came && t < args.tokens) {
    const int64_t token = t, places = next;
    t += int64_t{gridDim.x} * kWarps;
    next = places_of(t);
    if (args.rows) sum_token<T, N>(args, token, places);
    if (!args.weights) continue;
    for (int k = lane; k < args.topk; k += 32) {
      const int64_t place = place_of(args, token, k);
      const Acc<T>* pool = place < 0 ? nullptr : reinterpret_cast<const Acc<T>*>(args.from.weights[rank_of(place)]);
      args.weights[token * args.topk + k] = pool ? __ldcg(pool + row_of(place)) : Acc<T>{0};
    }
  }
  leave(peers, epoch, came);
}

// A rank that enters a later call has finished this one, so that no leaving is needed.
__global__ void __launch_bounds__(32) barrier_kernel(const __grid_constant__ Peers peers) {
  const uint32_t epoch = epoch_of_move(peers);
  come(peers, epoch);
  all_came(peers, epoch);
  if (threadIdx.x == 0) peers.windows[peers.rank]->moves = epoch;
}

bool aligned(const RankBuffers& buffers, int ranks, const void* own, int64_t row_bytes) {
  auto bits = reinterpret_cast<uintptr_t>(own) | static_cast<uintptr_t>(row_bytes);
  for (int rank = 0; rank < ranks; ++rank) bits |= reinterpret_cast<uintptr_t>(buffers.rows[rank]);
  return bits % 16 == 0;
}

// Enough blocks to fill the links, and no more: others may compute beside them.
unsigned blocks_for_rows(Stream& stream, int64_t rows, int per_multiprocessor, unsigned most) {
  return std::min(most, kernels::cuda::blocks_for(stream, (rows + kWarps - 1) / kWarps, per_multiprocessor));
}

}  // namespace

void launch_push(Stream& stream, const Peers& peers, const RankBuffers& to, const PeerMemory::Rows& from,
                 const Tensor& source, int64_t topk, const Tensor& remote, unsigned most_blocks) {
  const int64_t N = remote.elements();
  require<ShapeError>(N * topk < int64_t{1} << 31, "push_rows: ", N, " rows are too many");
  const int64_t bytes = from.rows.defined() ? row_bytes(from.rows) : 0;
  const unsigned blocks = blocks_for_rows(stream, N, 1, most_blocks);
  const auto launch = [&]<class Unit, class Weight>() {
    const Push<Unit, Weight> args{to,
                                  kernels::cuda::ptr<Unit>(from.rows),
                                  kernels::cuda::ptr<Weight>(from.weights),
                                  source.data<int64_t>(),
                                  remote.data<int64_t>(),
                                  static_cast<uint32_t>(N),
                                  static_cast<uint32_t>(topk),
                                  bytes / static_cast<int64_t>(sizeof(Unit))};
    push_kernel<Unit, Weight><<<blocks, kThreads, 0, native(stream)>>>(peers, args);
  };
  const bool wide = aligned(to, peers.size, from.rows.defined() ? from.rows.raw() : nullptr, bytes);
  const bool doubles = from.weights.defined() && from.weights.dtype() == DType::f64;
  if (wide)
    doubles ? launch.template operator()<uint4, double>() : launch.template operator()<uint4, float>();
  else
    doubles ? launch.template operator()<uint16_t, double>() : launch.template operator()<uint16_t, float>();
}

void launch_pull(Stream& stream, const Peers& peers, const PeerMemory::Rows& to, const RankBuffers& from,
                 const Tensor& slot, const Tensor& remote, unsigned most_blocks) {
  const bool rows = to.rows.defined();
  const DType dtype = rows ? to.rows.dtype() : to.weights.dtype();
  const int64_t tokens = rows ? to.rows.size(0) : slot.elements(), D = rows ? to.rows.size(1) : 0;
  const unsigned blocks = blocks_for_rows(stream, tokens, 2, most_blocks);
  kernels::cuda::dispatch_device(dtype, [&]<class T>() {
    constexpr int N = kernels::cuda::kPack<T>;
    const bool wide = aligned(from, peers.size, rows ? to.rows.raw() : nullptr, D * static_cast<int64_t>(sizeof(T)));
    const Pull<T> args{from,
                       kernels::cuda::ptr<T>(to.rows),
                       kernels::cuda::ptr<Acc<T>>(to.weights),
                       slot.data<int64_t>(),
                       remote.data<int64_t>(),
                       tokens,
                       wide ? D / N : D,
                       static_cast<int>(tokens == 0 ? 0 : slot.elements() / tokens)};
    if (wide)
      pull_kernel<T, N><<<blocks, kThreads, 0, native(stream)>>>(peers, args);
    else
      pull_kernel<T, 1><<<blocks, kThreads, 0, native(stream)>>>(peers, args);
  });
}

void launch_barrier(Stream& stream, const Peers& peers) {
  barrier_kernel<<<1, 32, 0, native(stream)>>>(peers);
}

}  // namespace witan::cuda
