// The forward of attention_tensor_forward.cuh by Hopper's warpgroups, with the same bits: chains of wgmma add 16
// products at a time as chains of mma.sync do, and tiles of keys, softmax and rounding are those of that kernel.
//
// Two warpgroups have 64 query rows each; another warp copies the tiles of keys and values that both read. A warpgroup
// keeps its queries in registers, and computes the softmax of a tile while the tensor cores multiply the values of the
// tile before it. Blocks are persistent: while rows are finished, the next rows' keys are copied.
#pragma once

#include "witan/kernels/attention/cuda/attention_tensor_forward.cuh"
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/hopper.cuh"
#include "witan/kernels/common/cuda/tensor_map.h"
#include "witan/kernels/common/cuda/wgmma.cuh"

namespace witan::kernels::cuda::tensor {

// The keys [key, end) that a stage holds, and whether they are the last of the query rows' tiles.
struct KeyTile {
  int key, end;
  IdRange ids;
  bool last;
};

template <int D>
struct HopperTile {
  static constexpr int kKeys = ForwardTile<D>::kKeys, kStages = 4;
  static constexpr int kWarps = 8, kRows = 16 * kWarps, kThreads = 32 * (kWarps + 4);
  static constexpr int kTileBytes = kKeys * D * 2, kStagingBytes = kRows * kStride<D> * 2;
  static constexpr int kAlign = 1024;  // of subtiles
  static constexpr int kPerStage = 2 * kTileBytes + 4 * int{sizeof(uint64_t)} + int{sizeof(KeyTile)};
  static constexpr int kBytes = kAlign + kStages * kPerStage + kStagingBytes;
  static_assert(kKeys == kSubtile && kStages % 2 == 0 && kTileBytes % kAlign == 0);
};

// The blocks' tasks: sections of so many groups, whose keys and values fit in the L2 cache, and in each the tiles with
// the most work first. Blocks take them back and forth, so that each has as much work as the others.
struct HopperSchedule {
  int groups, tiles, section;

  template <class Body>
  __device__ __forceinline__ void for_tasks(const Body& body) const {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    for (int round = 0;; ++round) {
      const int at = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
      if (at >= groups * tiles) return;
      const int first = at / (section * tiles) * section, size = min(section, groups - first);
      const int of_section = at - first * tiles;
      body(BlockTask{first + of_section % size, tiles - 1 - of_section / size});
    }
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block's shared memory. Step n uses stage n % kStages for the n / kStages-th time.
template <int D>
struct HopperRing {
  using F = HopperTile<D>;
  uint8_t *tiles, *staging;
  uint64_t* barriers;  // [keys, values][full, empty][kStages]
  KeyTile* described;  // [kStages]

  __device__ explicit HopperRing(uint8_t* memory)
      : tiles(memory + (F::kAlign - shared_address(memory) % F::kAlign) % F::kAlign),
        staging(tiles + 2 * F::kStages * F::kTileBytes),
        barriers(reinterpret_cast<uint64_t*>(staging + F::kStagingBytes)),
        described(reinterpret_cast<KeyTile*>(barriers + 4 * F::kStages)) {}
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 4 * F::kStages; ++i) barrier_init(barriers + i, i / F::kStages % 2 == 0 ? 1 : F::kWarps);
    barrier_init_done();
  }
  // Keys' tiles have kind 0, values' 1.
  __device__ __forceinline__ uint8_t* tile(int kind, unsigned step) const {
    return tiles + (kind * F::kStages + step % F::kStages) * F::kTileBytes;
  }
  __device__ __forceinline__ uint64_t* full(int kind, unsigned step) const {
    return barriers + 2 * kind * F::kStages + step % F::kStages;
  }
  __device__ __forceinline__ uint64_t* empty(int kind, unsigned step) const { return full(kind, step) + F::kStages; }
  __device__ __forceinline__ void wait_full(int kind, unsigned step) const {
    barrier_wait(full(kind, step), step / F::kStages % 2);
  }
  // A warp has read the tile, and its description.
  __device__ __forceinline__ void release(int kind, unsigned step) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(kind, step));
  }
  // Runs on one thread.
  __device__ __forceinline__ void copy(int kind, unsigned step, const CUtensorMap& map, int column, int key,
                                       int row) const {
    barrier_arrive_and_expect(full(kind, step), F::kTileBytes);
#pragma unroll
    for (int d = 0; d < D; d += kSubtile)
      load_box(tile(kind, step) + d * kSubtile * 2, map, full(kind, step), column + d, key, row);
  }
};

// The copying warp. Rows that see no keys get a tile of hidden ones.
template <int D, class T>
__device__ __forceinline__ void copy_tiles(const HopperRing<D>& ring, const AttentionCall<T>& call,
                                           const HopperSchedule& schedule, const CUtensorMap& keys,
                                           const CUtensorMap& values) {
  using F = HopperTile<D>;
  unsigned step = 0;
  schedule.for_tasks([&](const BlockTask& task) {
    const int32_t* const key_ids = call.key_ids_of(task.group);
    const WarpRows rows(call.heads, call.ids_of(task.group), task.tile, F::kRows);
    const Tiles tiles{key_ids, call.by_document, F::kKeys, rows.keys};
    const int column = static_cast<int>(task.group) % call.heads.G * D,
              row = static_cast<int>(task.group) / call.heads.G;
    int key = tiles.next(tiles.begin_of(rows.first_key), rows.ids);
    KeyTile tile{0, 0, {0, 0}, true};
    do {
      if (key < rows.keys) {
        const int end = tiles.end_of(key), following = tiles.next(end, rows.ids);
        tile = {key, end, key_ids ? tiles.ids_of(key) : IdRange{0, 0}, following >= rows.keys};
        key = following;
      }
      if (threadIdx.x % 32 == 0) {
        barrier_wait(ring.empty(0, step), (step / F::kStages + 1) % 2);
        ring.described[step % F::kStages] = tile;
        ring.copy(0, step, keys, column, tile.key, row);
        barrier_wait(ring.empty(1, step), (step / F::kStages + 1) % 2);
        ring.copy(1, step, values, column, tile.key, row);
      }
      __syncwarp();
      ++step;
    } while (!tile.last);
  });
}

template <int kFours>
__device__ __forceinline__ float (&flat(float (&sums)[kFours][4]))[4 * kFours] {
  return reinterpret_cast<float(&)[4 * kFours]>(sums);
}

// The fragments of a warp's 16 query rows.
template <int D, class T>
__device__ __forceinline__ void load_fragments(FragmentA (&q)[D / 16], const AttentionCall<T>& call, int64_t group,
                                               const WarpRows& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool exists = rows.row[half] <= rows.last_row;
    const T* const from =
        call.q + (exists ? call.heads.query(group, rows.row[half], D) + static_cast<int>(threadIdx.x % 4) * 2 : 0);
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
      q[d / 2].at[d % 2 * 2 + half] = exists ? *reinterpret_cast<const uint32_t*>(from + d * 8) : 0;
  }
}

// Rounds probabilities to the operands of a product.
template <int N, class T>
__device__ __forceinline__ void round_to_fragments(FragmentA (&p)[N / 16], const Sums<N>& s) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      p[n / 2].at[n % 2 * 2 + half] = pack_pair<T>(s[n][2 * half], s[n][2 * half + 1]);
}

// Keeps fragments unchanged up to this point.
template <int kFragments>
__device__ __forceinline__ void pin_fragments(FragmentA (&fragments)[kFragments]) {
#pragma unroll
  for (auto& fragment : fragments)
#pragma unroll
    for (uint32_t& pair : fragment.at) asm volatile("" : "+r"(pair)::"memory");
}

// A warpgroup's query rows, and what is summed of them so far.
template <int D, class T>
struct HopperRows {
  static constexpr int kKeys = HopperTile<D>::kKeys;
  WarpRows rows;
  const int32_t* key_ids;
  float scale;
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, rescale[2];
  FragmentA q[D / 16], p[kKeys / 16];
  Sums<kKeys> s;
  Sums<D> out;
  KeyTile tile;  // of the scores

  __device__ __forceinline__ HopperRows(const AttentionCall<T>& call, const BlockTask& task)
      : rows(call.heads, call.ids_of(task.group), task.tile, HopperTile<D>::kRows),
        key_ids(call.key_ids_of(task.group)),
        scale(call.scale * kLog2e) {
    load_fragments<D>(q, call, task.group, rows);
    pin_fragments(q);
    clear<kKeys>(s);
    clear<D>(out);
  }

  // Issues s = q k^T, of the step's tile of keys.
  __device__ __forceinline__ void issue_scores(const HopperRing<D>& ring, unsigned step) {
    ring.wait_full(0, step);
    tile = ring.described[step % HopperTile<D>::kStages];
    const uint64_t k = wgmma_operand<Major::k>(ring.tile(0, step));
    wgmma_begin();
#pragma unroll
    for (int d = 0; d < D; d += kWgmmaK)
      wgmma<kKeys, Major::k, kElementFor<T>>(
          flat(s), q[d / kWgmmaK].at,
          k + d / kSubtile * (kSubtileBytes >> 4) + d % kSubtile / kWgmmaK * kWgmmaAdvance<Major::k>, d);
    wgmma_commit();
  }
  // Issues out += p v, of the step's tile of values.
  __device__ __forceinline__ void issue_product(const HopperRing<D>& ring, unsigned step) {
    ring.wait_full(1, step);
    const uint64_t v = wgmma_operand<Major::mn>(ring.tile(1, step));
    pin_fragments(p);
    pin(flat(out));
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kKeys / kWgmmaK; ++k)
      wgmma<D, Major::mn, kElementFor<T>>(flat(out), p[k].at, v + k * kWgmmaAdvance<Major::mn>, 1);
    wgmma_commit();
  }

  // The scores have been waited for.
  __device__ __forceinline__ void softmax(const HopperRing<D>& ring, unsigned step) {
    pin(flat(s));
    ring.release(0, step);
    scale_scores<kKeys>(s, scale);
    const bool all_seen = tile.key >= rows.shared_from && tile.key + kKeys <= min(rows.shared, tile.end) &&
                          (!key_ids || tile.ids.equals(rows.ids));
    if (!all_seen) hide_unseen<kKeys>(s, rows, key_ids, tile.key, tile.end);
    softmax_scores<kKeys>(s, top, sum, rescale);
  }
  // Waits for the product.
  __device__ __forceinline__ void take_product(const HopperRing<D>& ring, unsigned step) {
    wgmma_wait<0>();
    pin(flat(out));
    pin_fragments(p);
    ring.release(1, step);
  }
};

// Stores a warp's rows through its staging memory, which its lanes' earlier copies have read.
template <int D, class T>
__device__ __forceinline__ void store_rows(uint8_t* staging, const AttentionCall<T>& call, int64_t group,
                                           const HopperRows<D, T>& mine) {
  const WarpRows& rows = mine.rows;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = row_sum(mine.sum[half]);
    factor[half] = total == 0 ? 0.f : 1 / total;  // 0: no key was seen
    if (call.lse && lane % 4 == 0 && rows.row[half] <= rows.last_row)
      call.lse[call.heads.lse(group, rows.row[half])] = log_of_row(mine.top[half], total);
  }
  T* const to = reinterpret_cast<T*>(staging) + warp * 16 * kStride<D>;
  bulk_wait_read();
  __syncwarp();
  const auto pair = [&](int n, int half) {
    return pack_pair<T>(mine.out[n][2 * half] * factor[half], mine.out[n][2 * half + 1] * factor[half]);
  };
#pragma unroll
  for (int n = 0; n < D / 8; n += 2)
    store_matrices(to + lane % 16 * kStride<D> + lane / 16 * 8 + n * 8, pair(n, 0), pair(n, 1), pair(n + 1, 0),
                   pair(n + 1, 1));
  fence_shared_for_async();
  __syncwarp();
  const int row = rows.first_row + warp * 16 + lane;
  if (lane < 16 && row <= rows.last_row)
    bulk_store(call.y + call.heads.query(group, row, D), to + lane * kStride<D>, D * 2);
  bulk_commit();
}

// A multiplying warpgroup. The product of a tile runs during the softmax of the next one. The warpgroups take turns to
// issue their multiplies, so that the softmax of one also runs beside the products of the other.
template <int D, class T>
__device__ __forceinline__ void attend(const HopperRing<D>& ring, const AttentionCall<T>& call,
                                       const HopperSchedule& schedule) {
  constexpr int kTurn = 1, kThreads = 32 * HopperTile<D>::kWarps;  // the first warpgroup's barrier, then the second's
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 1) arrive_threads(kTurn, kThreads);
  unsigned step = 0;
  schedule.for_tasks([&](const BlockTask& task) {
    HopperRows<D, T> mine(call, task);
    mine.issue_scores(ring, step);
    wgmma_wait<0>();
    mine.softmax(ring, step);
    round_to_fragments<mine.kKeys, T>(mine.p, mine.s);
    for (; !mine.tile.last; ++step) {
      sync_threads(kTurn + warpgroup, kThreads);
      mine.issue_scores(ring, step + 1);
      mine.issue_product(ring, step);
      arrive_threads(kTurn + 1 - warpgroup, kThreads);
      wgmma_wait<1>();
      mine.softmax(ring, step + 1);
      mine.take_product(ring, step);
      rescale_rows<D>(mine.out, mine.rescale);
      round_to_fragments<mine.kKeys, T>(mine.p, mine.s);
    }
    mine.issue_product(ring, step);
    mine.take_product(ring, step);
    ++step;
    store_rows(ring.staging, call, task.group, mine);
  });
  bulk_wait_read();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <class T, int D>
__global__ void __launch_bounds__(HopperTile<D>::kThreads, 1)
    hopper_forward_kernel(const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values,
                          const __grid_constant__ AttentionCall<T> call,
                          const __grid_constant__ HopperSchedule schedule) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t hopper_memory[];
  const HopperRing<D> ring(hopper_memory);
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= HopperTile<D>::kWarps) {
    give_registers<40>();
    if (warp == HopperTile<D>::kWarps) copy_tiles<D>(ring, call, schedule, keys, values);
    return;
  }
  take_registers<232>();
  attend<D>(ring, call, schedule);
#endif
}

template <class T, int D>
void launch_hopper(Stream& stream, const AttentionCall<T>& call, int keys) {
  using F = HopperTile<D>;
  constexpr int64_t kCached = int64_t{24} << 20;  // bytes of keys and values that stay in the L2 cache
  const Heads& heads = call.heads;
  const auto map = [&](const T* data) {
    return tensor_map(MappedMatrices{data, heads.B, keys, int64_t{heads.G} * D, heads.capacity}, F::kKeys);
  };
  const int64_t groups = heads.groups(), tiles = tiles_of(heads.rows, F::kRows), group_bytes = int64_t{4} * keys * D;
  const int64_t section = std::clamp<int64_t>(kCached / group_bytes, 1, groups);
  const HopperSchedule schedule{static_cast<int>(groups), static_cast<int>(tiles), static_cast<int>(section)};
  const auto kernel = hopper_forward_kernel<T, D>;
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kBytes),
                     "attention's shared memory");
  kernel<<<static_cast<unsigned>(std::min<int64_t>(groups * tiles, multiprocessors(stream))), F::kThreads, F::kBytes,
           native(stream)>>>(map(call.k), map(call.v), call, schedule);
}

// Computes the forward, unless it is another kernel's. Only shapes and the machine decide, and no bit depends on it.
template <class T>
bool launch_hopper_forward(Stream& stream, const AttentionCall<T>& call) {
  const Heads& heads = call.heads;
  const bool wide = heads.hd == 128;
  const int keys = heads.keys_of(heads.rows - 1);  // that any query sees; what follows them may be anything
  if (!is_hopper(stream) || !call.packed || call.dropout.step || heads.hd != heads.hd_v || (!wide && heads.hd != 64) ||
      heads.rows <= ForwardTile<128>::kRows || keys == 0 ||
      heads.groups() * heads.rows > std::numeric_limits<int>::max())
    return false;
  wide ? launch_hopper<T, 128>(stream, call, keys) : launch_hopper<T, 64>(stream, call, keys);
  return true;
}

}  // namespace witan::kernels::cuda::tensor
