// The backward of attention_tensor.cuh: one pass by query rows for dq, and one by keys for dk and dv. Each recomputes
// the scores, so that blocks share no sums.
#pragma once

#include "witan/kernels/attention/cuda/attention_launch.cuh"
#include "witan/kernels/attention/cuda/attention_tensor.cuh"

namespace witan::kernels::cuda::tensor {

// ---- dq: as the forward, with dy beside q ---------------------------------------------------------------------------

template <int D>
struct DqTile {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kWarps;
  static constexpr int kKeys = D <= 128 ? 64 : 32;
  static constexpr int kQueryElements = kRows * kStride<D>, kKeyElements = kKeys * kStride<D>;
  static constexpr int kBytes = (2 * kQueryElements + 4 * kKeyElements) * static_cast<int>(sizeof(uint16_t));
};

// Turns s and dp [16, N] into ds, stored in dp, without `scale`. s and lse are in units of log2.
template <int N>
__device__ __forceinline__ void score_gradients(Sums<N>& dp, const Sums<N>& s, const float (&lse)[2],
                                                const float (&delta)[2]) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) dp[n][e] = exp2_fast(s[n][e] - lse[e / 2]) * (dp[n][e] - delta[e / 2]);
}

template <class T, int D, bool kDropout>
__global__ void __launch_bounds__(DqTile<D>::kThreads)
    dq_kernel(const AttentionCall<T> call, int64_t groups, int tiles) {
  using F = DqTile<D>;
  extern __shared__ __align__(16) unsigned char memory[];
  T *const q = reinterpret_cast<T*>(memory), *const dy = q + F::kQueryElements;
  T* const buffers = dy + F::kQueryElements;

  const Heads& heads = call.heads;
  const BlockTask task = block_task(call, groups, tiles, true);
  const int64_t group = task.group;
  const int32_t* key_ids = call.key_ids_of(group);
  const WarpRows rows(heads, call.ids_of(group), task.tile, F::kRows);
  const Tiles tiles_of_keys{key_ids, call.by_document, F::kKeys, rows.keys};
  DropoutMask mask{};
  int64_t mask_row[2]{};
  if constexpr (kDropout) {
    mask = call.dropout.mask();
    mask_rows(mask_row, call, group, rows);
  }
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t at = heads.lse(group, min(rows.row[half], rows.last_row));
    lse[half] = call.lse[at] == -INFINITY ? 0.f : call.lse[at] * kLog2e;
    delta[half] = call.delta[at - call.first_group * heads.rows];
  }

  const auto load = [&](int key, int buffer) {
    T* k = buffers + buffer * 2 * F::kKeyElements;
    load_keys<D, F::kKeys, F::kThreads>(k, call, call.k, call.heads.hd, group, key, rows.keys);
    load_keys<D, F::kKeys, F::kThreads>(k + F::kKeyElements, call, call.v, call.heads.hd_v, group, key, rows.keys);
  };
  load_queries<D, F::kRows, F::kThreads>(q, call, call.q, heads.hd, group, rows.first_row);
  load_queries<D, F::kRows, F::kThreads>(dy, call, call.dy, heads.hd_v, group, rows.first_row);
  int key = tiles_of_keys.next(tiles_of_keys.begin_of(rows.first_key), rows.ids);
  Pipeline pipeline(load, key, rows.keys);

  const int at = static_cast<int>(threadIdx.x) / 32 * 16 * kStride<D>;
  Sums<D> out;
  clear<D>(out);
  while (key < rows.keys) {
    const int end = tiles_of_keys.end_of(key), following = tiles_of_keys.next(tiles_of_keys.after(key), rows.ids);
    const T* k = buffers + pipeline.next(following) * 2 * F::kKeyElements;
    if (rows.busy()) {
      Sums<F::kKeys> s, dp;
      clear<F::kKeys>(s);
      clear<F::kKeys>(dp);
      add_scores<F::kKeys, D>(s, q + at, k);
      add_scores<F::kKeys, D>(dp, dy + at, k + F::kKeyElements);
      if constexpr (kDropout) drop<F::kKeys>(dp, mask, mask_row, heads.keys, key);
      scale_scores<F::kKeys>(s, call.scale * kLog2e);
      hide<F::kKeys>(s, rows, key_ids, key, end);
      score_gradients<F::kKeys>(dp, s, lse, delta);
      add_product<D, F::kKeys, D>(out, dp, k);
    }
    key = following;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (rows.row[half] <= rows.last_row)
      store_row<D>(call.dq + heads.query(group, rows.row[half], heads.hd), out, half, call.scale, 0, heads.hd,
                   call.packed);
}

// ---- dk and dv ------------------------------------------------------------------------------------------------------

// A block owns 64 keys, 16 per warp, and takes query rows 32 at a time, with scores transposed: [keys, rows]. With head
// sizes above 128, two warps share 16 keys, and each computes half of the columns, since all would not fit in a warp's
// registers.
template <int D>
struct DkvTile {
  static constexpr int kParts = D <= 128 ? 1 : 2, kColumns = D / kParts;
  static constexpr int kWarps = 4 * kParts, kThreads = 32 * kWarps;
  static constexpr int kKeys = 64, kRows = 32;
  static constexpr int kQueryElements = kRows * kStride<D>, kKeyElements = kKeys * kStride<D>;
  static constexpr int kTileBytes = (2 * kKeyElements + 4 * kQueryElements) * static_cast<int>(sizeof(uint16_t));
};

// Query rows of a tile, in shared memory.
template <int R>
struct TileRows {
  int64_t mask_row[R];
  float lse[R], delta[R];  // lse in units of log2
  int from[R], keys[R];    // by position, a row may see keys [from, keys): none after the tile's end
  int id[R];
};

template <int R, class T>
__device__ __forceinline__ void load_rows(TileRows<R>& to, const AttentionCall<T>& call, int64_t group, int first,
                                          int end, const int32_t* ids) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= R) return;
  const Heads& heads = call.heads;
  const int row = first + i;
  const RowSight sight = row_sight(heads, ids, row);
  const int64_t at = heads.lse(group, min(row, heads.rows - 1));
  to.mask_row[i] = heads.mask_row(group, min(row, heads.rows - 1));
  to.lse[i] = call.lse[at] * kLog2e;
  to.delta[i] = call.delta[at - call.first_group * heads.rows];
  to.from[i] = sight.from;
  to.keys[i] = row < end ? sight.keys : 0;
  to.id[i] = sight.id;
}

// A lane's two keys: g and g + 8 of its warp's.
struct LaneKeys {
  int key[2], id[2];
  int mask_position[2];  // by which dropout counts
};

// Turns s^T and dp^T [16 keys, R rows] into m p and ds, both transposed, ds without `scale`.
template <int R, bool kDropout>
__device__ __forceinline__ void pair_gradients(Sums<R>& s, Sums<R>& dp, const TileRows<R>& rows, const LaneKeys& keys,
                                               float scale, bool all_seen, const DropoutMask& mask) {
#pragma unroll
  for (int n = 0; n < R / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = n * 8 + static_cast<int>(threadIdx.x % 4) * 2 + e % 2, key = keys.key[e / 2];
      const bool seen = all_seen || (key >= rows.from[r] && key < rows.keys[r] && keys.id[e / 2] == rows.id[r]);
      const float p = seen ? exp2_fast(s[n][e] * scale - rows.lse[r]) : 0.f;
      const float m = kDropout ? dropout_factor(mask, rows.mask_row[r], keys.mask_position[e / 2]) : 1.f;
      s[n][e] = m * p;
      dp[n][e] = p * (m * dp[n][e] - rows.delta[r]);
    }
}

template <class T, int D, bool kDropout>
__global__ void __launch_bounds__(DkvTile<D>::kThreads)
    dkv_kernel(const AttentionCall<T> call, int64_t groups, int tiles) {
  using F = DkvTile<D>;
  constexpr int R = F::kRows;
  extern __shared__ __align__(16) unsigned char memory[];
  T *const k = reinterpret_cast<T*>(memory), *const v = k + F::kKeyElements, *const buffers = v + F::kKeyElements;
  __shared__ TileRows<R> tile_rows[2];

  const Heads& heads = call.heads;
  const BlockTask task = block_task(call, groups, tiles, false);
  const int64_t group = task.group;
  const int first_key = task.tile * F::kKeys, end_key = min(first_key + F::kKeys, heads.capacity);
  const int32_t *ids = call.ids_of(group), *key_ids = call.key_ids_of(group);
  const IdRange of_keys = id_range(key_ids, first_key, end_key);
  DropoutMask mask{};
  if constexpr (kDropout) mask = call.dropout.mask();

  const int warp = static_cast<int>(threadIdx.x) / 32, slab = warp % 4 * 16, column = warp / 4 * F::kColumns;
  LaneKeys keys;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    keys.key[half] = first_key + slab + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half;
    keys.id[half] = key_ids ? key_ids[min(keys.key[half], heads.capacity - 1)] : 0;
    keys.mask_position[half] = heads.keys.at(keys.key[half]);
  }

  const Tiles tiles_of_rows{ids, call.by_document, R, heads.rows_of(end_key - 1), heads.rep};
  const auto load = [&](int row, int buffer) {
    T* q = buffers + buffer * 2 * F::kQueryElements;
    load_queries<D, R, F::kThreads>(q, call, call.q, heads.hd, group, row);
    load_queries<D, R, F::kThreads>(q + F::kQueryElements, call, call.dy, heads.hd_v, group, row);
    load_rows(tile_rows[buffer], call, group, row, tiles_of_rows.end_of(row), ids);
  };
  load_keys<D, F::kKeys, F::kThreads>(k, call, call.k, heads.hd, group, first_key, end_key);
  load_keys<D, F::kKeys, F::kThreads>(v, call, call.v, heads.hd_v, group, first_key, end_key);
  // The first tile that may see a key.
  int row = tiles_of_rows.next(tiles_of_rows.begin_of(heads.first_row_of(first_key)), of_keys);
  Pipeline pipeline(load, row, tiles_of_rows.end);

  Sums<F::kColumns> dk, dv;
  clear<F::kColumns>(dk);
  clear<F::kColumns>(dv);
  while (row < tiles_of_rows.end) {
    const int following = tiles_of_rows.next(tiles_of_rows.after(row), of_keys);
    const int buffer = pipeline.next(following);
    const T *q = buffers + buffer * 2 * F::kQueryElements, *dy = q + F::kQueryElements;
    const bool all_seen = heads.keys_of(row) >= first_key + F::kKeys && tiles_of_rows.end_of(row) == row + R &&
                          heads.first_key_of(row + R - 1) <= first_key &&
                          (!ids || tiles_of_rows.ids_of(row).equals(of_keys));
    Sums<R> s, dp;
    clear<R>(s);
    clear<R>(dp);
    add_scores<R, D>(s, k + slab * kStride<D>, q);
    add_scores<R, D>(dp, v + slab * kStride<D>, dy);
    pair_gradients<R, kDropout>(s, dp, tile_rows[buffer], keys, call.scale * kLog2e, all_seen, mask);
    add_product<F::kColumns, R, D>(dv, s, dy + column);
    add_product<F::kColumns, R, D>(dk, dp, q + column);
    row = following;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (keys.key[half] < end_key) {
      const int key = keys.key[half];
      store_row<F::kColumns>(call.dk + heads.key(group, key, heads.hd), dk, half, call.scale, column, heads.hd,
                             call.packed);
      store_row<F::kColumns>(call.dv + heads.key(group, key, heads.hd_v), dv, half, 1.f, column, heads.hd_v,
                             call.packed);
    }
}

template <class T>
void launch_backward(Stream& stream, const AttentionCall<T>& call, int64_t groups) {
  if (widest_head(call) > kMostTensorHead) return launch_wide_backward(stream, call, groups);
  dispatch_tile<kMostTensorHead>(call, [&]<int D, bool kDropout>() {
    using Q = DqTile<D>;
    launch_tiles(stream, dq_kernel<T, D, kDropout>, call, groups, tiles_of(call.heads.rows, Q::kRows), Q::kThreads,
                 Q::kBytes);
    using K = DkvTile<D>;
    launch_tiles(stream, dkv_kernel<T, D, kDropout>, call, groups, tiles_of(call.heads.capacity, K::kKeys), K::kThreads,
                 K::kTileBytes);
  });
}

}  // namespace witan::kernels::cuda::tensor
