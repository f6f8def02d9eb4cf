// Attention for float32 and float64 on ordinary cores, since tensor cores would round their operands; and for 16-bit
// heads that are too wide for the registers of the kernels on tensor cores. Tiles of R rows by R keys are in shared
// memory, in the dtype of the sums; thread (i, j) of 16 x 16 computes the scores of rows and keys i, j mod 16, and then
// columns of the products.
#pragma once

#include "witan/kernels/attention/cuda/attention_shape.cuh"

namespace witan::kernels::cuda::plain {

constexpr int kSide = 16, kThreads = kSide * kSide, kWarps = kThreads / 32;

// T: the dtype of sums; S: that of the tensors. D: the larger head size rounded up, and the columns of a tile; columns
// beyond a tensor's own hold zeros.
template <class T, int D>
struct Tile {
  static constexpr int R = D * sizeof(T) >= 1024 ? 16 : 32;
  static constexpr int V = kPack<T>;
  static constexpr int kStride = D + V;  // rows start in different banks
  static constexpr int kScores = R * (R + 1);
  static constexpr int kPer = R / kSide;          // rows or keys per thread
  static constexpr int kPacks = D / (kSide * V);  // per thread in a row of the product
  static constexpr int kElements = R * kStride;
};

// A thread's part of a [R, D] product: rows i + 16 a, packs j + 16 c.
template <class T, int D>
using Product = T[Tile<T, D>::kPer][Tile<T, D>::kPacks][Tile<T, D>::V];

// Loads rows [0, R) of a tile, `width` columns each, from `row(r)`; a row is zeros if that is null.
template <class S, int D, class Row>
__device__ __forceinline__ void load_tile(Acc<S>* to, const AttentionCall<S>& call, int width, const Row& row) {
  using T = Acc<S>;
  using Q = Tile<T, D>;
  constexpr int kPacksOfRow = D / Q::V;
  for (int i = threadIdx.x; i < Q::R * kPacksOfRow; i += kThreads) {
    const int r = i / kPacksOfRow, d = i % kPacksOfRow * Q::V;
    const S* from = row(r);
    Pack<S, Q::V> pack{};
    if (from && call.packed && d < width) {
      pack = load_pack<S, Q::V>(from + d);
    } else if (from) {
#pragma unroll
      for (int e = 0; e < Q::V; ++e)
        if (d + e < width) pack.at[e] = from[d + e];
    }
    Pack<T, Q::V> wide;
#pragma unroll
    for (int e = 0; e < Q::V; ++e) wide.at[e] = convert<T>(pack.at[e]);
    store_pack(to + r * Q::kStride + d, wide);
  }
}
template <class S, int D>
__device__ __forceinline__ void load_keys(Acc<S>* to, const AttentionCall<S>& call, const S* keys, int width,
                                          int64_t group, int first, int end) {
  load_tile<S, D>(to, call, width,
                  [&](int r) { return first + r < end ? keys + call.heads.key(group, first + r, width) : nullptr; });
}
template <class S, int D>
__device__ __forceinline__ void load_queries(Acc<S>* to, const AttentionCall<S>& call, const S* queries, int width,
                                             int64_t group, int first) {
  load_tile<S, D>(to, call, width, [&](int r) {
    return first + r < call.heads.rows ? queries + call.heads.query(group, first + r, width) : nullptr;
  });
}

// s[a][b] = x[i + 16 a, :] . y[j + 16 b, :]
template <class T, int D>
__device__ __forceinline__ void scores(T (&s)[Tile<T, D>::kPer][Tile<T, D>::kPer], const T* x, const T* y) {
  using Q = Tile<T, D>;
  const int i = threadIdx.x / kSide, j = threadIdx.x % kSide;
#pragma unroll
  for (auto& row : s)
#pragma unroll
    for (T& value : row) value = 0;
#pragma unroll 4
  for (int d = 0; d < D; d += Q::V) {
    Pack<T, Q::V> rows[Q::kPer], keys[Q::kPer];
#pragma unroll
    for (int a = 0; a < Q::kPer; ++a) {
      rows[a] = load_pack<T, Q::V>(x + (i + kSide * a) * Q::kStride + d);
      keys[a] = load_pack<T, Q::V>(y + (j + kSide * a) * Q::kStride + d);
    }
#pragma unroll
    for (int a = 0; a < Q::kPer; ++a)
#pragma unroll
      for (int b = 0; b < Q::kPer; ++b)
#pragma unroll
        for (int e = 0; e < Q::V; ++e) s[a][b] += rows[a].at[e] * keys[b].at[e];
  }
}

// out[a] += sum over n of p(n, i + 16 a) x[n, :]; p is at p[n * n_stride + row * row_stride].
template <class T, int D>
__device__ __forceinline__ void add_product(Product<T, D>& out, const T* p, int n_stride, int row_stride, const T* x) {
  using Q = Tile<T, D>;
  const int i = threadIdx.x / kSide, j = threadIdx.x % kSide;
#pragma unroll 4
  for (int n = 0; n < Q::R; ++n)
#pragma unroll
    for (int c = 0; c < Q::kPacks; ++c) {
      const auto pack = load_pack<T, Q::V>(x + n * Q::kStride + (j + kSide * c) * Q::V);
#pragma unroll
      for (int a = 0; a < Q::kPer; ++a) {
        const T factor = p[n * n_stride + (i + kSide * a) * row_stride];
#pragma unroll
        for (int e = 0; e < Q::V; ++e) out[a][c][e] += factor * pack.at[e];
      }
    }
}

// Stores row i + 16 a of the product, times `factor(i + 16 a)`, to `row(i + 16 a)`, unless that is null.
template <class S, int D, class Row, class Factor>
__device__ __forceinline__ void store_product(const Product<Acc<S>, D>& out, int width, const Row& row,
                                              const Factor& factor) {
  using T = Acc<S>;
  using Q = Tile<T, D>;
  const int i = threadIdx.x / kSide, j = threadIdx.x % kSide;
#pragma unroll
  for (int a = 0; a < Q::kPer; ++a) {
    S* to = row(i + kSide * a);
    if (!to) continue;
    const T by = factor(i + kSide * a);
#pragma unroll
    for (int c = 0; c < Q::kPacks; ++c)
#pragma unroll
      for (int e = 0; e < Q::V; ++e) {
        const int d = (j + kSide * c) * Q::V + e;
        if (d < width) to[d] = convert<S>(out[a][c][e] * by);
      }
  }
}

// Dropout's factor for probability (row, key); `row` is the first block of the row's probabilities.
template <class T>
__device__ __forceinline__ T dropout_factor(const DropoutMask& mask, int64_t row, int key) {
  const uint4 words = mask.block(static_cast<uint64_t>(row) + static_cast<uint64_t>(key / 4));
  const uint32_t low = key % 2 ? words.y : words.x, high = key % 2 ? words.w : words.z;
  return mask.factor<T>(key % 4 < 2 ? low : high);
}

// ---- forward --------------------------------------------------------------------------------------------------------

// A block's state of its query rows.
template <class T, int R>
struct RowState {
  T top[R], sum[R], rescale[R];
  int from[R], keys[R], id[R];
};

// Turns s [R, R], a warp per row, into p = exp(s - top) times the mask, and updates top, sum and rescale.
template <class S, int R, bool kDropout, class T>
__device__ __forceinline__ void softmax_step(T* s, RowState<T, R>& state, const AttentionCall<S>& call,
                                             const DropoutMask& mask, int64_t group, int first_row, int first_key,
                                             int end_key, const int32_t* key_ids) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, key = first_key + lane;
  for (int r = warp; r < R; r += kWarps) {
    const RowSight sight{state.from[r], state.keys[r], state.id[r]};
    const bool seen = lane < R && key < end_key && sight.sees(key, key_ids);
    const T score = seen ? s[r * (R + 1) + lane] * call.scale : -static_cast<T>(INFINITY);
    const T before = state.top[r], top = max(before, warp_max(score));
    T p = seen ? exp(score - top) : T(0);
    const T sum = warp_sum(p), rescale = before == top ? T(1) : exp(before - top);
    if constexpr (kDropout)
      if (seen)
        p *= dropout_factor<T>(mask, call.heads.mask_row(group, min(first_row + r, call.heads.rows - 1)),
                               call.heads.keys.at(key));
    if (lane < R) s[r * (R + 1) + lane] = p;
    __syncwarp();
    if (lane == 0) state.top[r] = top, state.sum[r] = state.sum[r] * rescale + sum, state.rescale[r] = rescale;
  }
}

template <class S, int D, bool kDropout>
__global__ void __launch_bounds__(kThreads) forward_kernel(const AttentionCall<S> call, int64_t groups, int tiles) {
  using T = Acc<S>;
  using Q = Tile<T, D>;
  constexpr int R = Q::R;
  extern __shared__ __align__(16) unsigned char memory[];
  T *q = reinterpret_cast<T*>(memory), *k = q + Q::kElements, *v = k + Q::kElements, *s = v + Q::kElements;
  __shared__ RowState<T, R> state;

  const Heads& heads = call.heads;
  const BlockTask task = block_task(call, groups, tiles, true);
  const int64_t group = task.group;
  const int first_row = task.tile * R, last_row = min(first_row + R, heads.rows) - 1;
  const int32_t *ids = call.ids_of(group), *key_ids = call.key_ids_of(group);
  const Tiles tiles_of_keys{key_ids, call.by_document, R, heads.keys_of(last_row)};
  const IdRange queries = row_ids(heads, ids, first_row, last_row);
  DropoutMask mask{};
  if constexpr (kDropout) mask = call.dropout.mask();

  load_queries<S, D>(q, call, call.q, heads.hd, group, first_row);
  if (threadIdx.x < R) {
    const RowSight sight = row_sight(heads, ids, first_row + threadIdx.x);
    state.from[threadIdx.x] = sight.from, state.keys[threadIdx.x] = sight.keys, state.id[threadIdx.x] = sight.id;
    state.top[threadIdx.x] = -static_cast<T>(INFINITY), state.sum[threadIdx.x] = 0;
  }
  Product<T, D> y = {};
  for (int key = tiles_of_keys.next(tiles_of_keys.begin_of(heads.first_key_of(first_row)), queries);
       key < tiles_of_keys.end; key = tiles_of_keys.next(tiles_of_keys.after(key), queries)) {
    const int end = tiles_of_keys.end_of(key);
    __syncthreads();  // the previous tile is no longer read
    load_keys<S, D>(k, call, call.k, heads.hd, group, key, end);
    load_keys<S, D>(v, call, call.v, heads.hd_v, group, key, end);
    __syncthreads();
    const int i = threadIdx.x / kSide, j = threadIdx.x % kSide;
    T score[Q::kPer][Q::kPer];
    scores<T, D>(score, q, k);
#pragma unroll
    for (int a = 0; a < Q::kPer; ++a)
#pragma unroll
      for (int b = 0; b < Q::kPer; ++b) s[(i + kSide * a) * (R + 1) + j + kSide * b] = score[a][b];
    __syncthreads();
    softmax_step<S, R, kDropout>(s, state, call, mask, group, first_row, key, end, key_ids);
    __syncthreads();
#pragma unroll
    for (int a = 0; a < Q::kPer; ++a)
#pragma unroll
      for (int c = 0; c < Q::kPacks; ++c)
#pragma unroll
        for (int e = 0; e < Q::V; ++e) y[a][c][e] *= state.rescale[i + kSide * a];
    add_product<T, D>(y, s, 1, R + 1, v);
  }
  __syncthreads();  // makes the initial states visible if no key was seen
  store_product<S, D>(
      y, heads.hd_v,
      [&](int r) {
        return first_row + r <= last_row ? call.y + heads.query(group, first_row + r, heads.hd_v) : nullptr;
      },
      [&](int r) { return state.sum[r] == 0 ? T(0) : T(1) / state.sum[r]; });
  if (call.lse && threadIdx.x < R && first_row + static_cast<int>(threadIdx.x) <= last_row)
    call.lse[heads.lse(group, first_row + threadIdx.x)] = state.top[threadIdx.x] + log(state.sum[threadIdx.x]);
}

// ---- backward -------------------------------------------------------------------------------------------------------

// p and ds of a tile of rows and a tile of keys, written to shared memory as [row, key]: p times the mask, ds without
// `scale`.
template <class T, int R>
struct PairState {
  T lse[R], delta[R];
  int from[R], keys[R], id[R];
  int64_t mask_row[R];
};

template <class S, int R, class T>
__device__ __forceinline__ void load_pair_state(PairState<T, R>& state, const AttentionCall<S>& call, int64_t group,
                                                int first_row, int end_row, const int32_t* ids) {
  const int r = threadIdx.x;
  if (r >= R) return;
  const Heads& heads = call.heads;
  const RowSight sight = row_sight(heads, ids, first_row + r);
  const int64_t at = heads.lse(group, min(first_row + r, heads.rows - 1));
  state.from[r] = sight.from;
  state.keys[r] = first_row + r < end_row ? sight.keys : 0;  // rows after the tile's end see no keys
  state.id[r] = sight.id;
  state.lse[r] = call.lse[at];
  state.delta[r] = call.delta[at - call.first_group * heads.rows];
  state.mask_row[r] = heads.mask_row(group, min(first_row + r, heads.rows - 1));
}

template <class S, int D, bool kDropout, class T>
__device__ __forceinline__ void pairs_step(T* p, T* ds, const T* q, const T* dy, const T* k, const T* v,
                                           const PairState<T, Tile<T, D>::R>& state, const AttentionCall<S>& call,
                                           const DropoutMask& mask, int first_key, int end_key,
                                           const int32_t* key_ids) {
  using Q = Tile<T, D>;
  const int i = threadIdx.x / kSide, j = threadIdx.x % kSide;
  T s[Q::kPer][Q::kPer], dp[Q::kPer][Q::kPer];
  scores<T, D>(s, q, k);
  scores<T, D>(dp, dy, v);
#pragma unroll
  for (int a = 0; a < Q::kPer; ++a)
#pragma unroll
    for (int b = 0; b < Q::kPer; ++b) {
      const int r = i + kSide * a, key = first_key + j + kSide * b, at = r * (Q::R + 1) + j + kSide * b;
      const bool seen = key < end_key && RowSight{state.from[r], state.keys[r], state.id[r]}.sees(key, key_ids);
      const T probability = seen ? exp(s[a][b] * call.scale - state.lse[r]) : T(0);
      T m = 1;
      if constexpr (kDropout) m = seen ? dropout_factor<T>(mask, state.mask_row[r], call.heads.keys.at(key)) : T(0);
      p[at] = probability * m;
      ds[at] = probability * (m * dp[a][b] - state.delta[r]);
    }
}

template <class S, int D, bool kDropout>
__global__ void __launch_bounds__(kThreads) dq_kernel(const AttentionCall<S> call, int64_t groups, int tiles) {
  using T = Acc<S>;
  using Q = Tile<T, D>;
  constexpr int R = Q::R;
  extern __shared__ __align__(16) unsigned char memory[];
  T *q = reinterpret_cast<T*>(memory), *dy = q + Q::kElements, *k = dy + Q::kElements, *v = k + Q::kElements;
  T *p = v + Q::kElements, *ds = p + Q::kScores;
  __shared__ PairState<T, R> state;

  const Heads& heads = call.heads;
  const BlockTask task = block_task(call, groups, tiles, true);
  const int64_t group = task.group;
  const int first_row = task.tile * R, last_row = min(first_row + R, heads.rows) - 1;
  const int32_t *ids = call.ids_of(group), *key_ids = call.key_ids_of(group);
  const Tiles tiles_of_keys{key_ids, call.by_document, R, heads.keys_of(last_row)};
  const IdRange queries = row_ids(heads, ids, first_row, last_row);
  DropoutMask mask{};
  if constexpr (kDropout) mask = call.dropout.mask();

  load_queries<S, D>(q, call, call.q, heads.hd, group, first_row);
  load_queries<S, D>(dy, call, call.dy, heads.hd_v, group, first_row);
  load_pair_state<S, R>(state, call, group, first_row, last_row + 1, ids);
  Product<T, D> dq = {};
  for (int key = tiles_of_keys.next(tiles_of_keys.begin_of(heads.first_key_of(first_row)), queries);
       key < tiles_of_keys.end; key = tiles_of_keys.next(tiles_of_keys.after(key), queries)) {
    const int end = tiles_of_keys.end_of(key);
    __syncthreads();
    load_keys<S, D>(k, call, call.k, heads.hd, group, key, end);
    load_keys<S, D>(v, call, call.v, heads.hd_v, group, key, end);
    __syncthreads();
    pairs_step<S, D, kDropout>(p, ds, q, dy, k, v, state, call, mask, key, end, key_ids);
    __syncthreads();
    add_product<T, D>(dq, ds, 1, R + 1, k);
  }
  store_product<S, D>(
      dq, heads.hd,
      [&](int r) {
        return first_row + r <= last_row ? call.dq + heads.query(group, first_row + r, heads.hd) : nullptr;
      },
      [&](int) { return call.scale; });
}

template <class S, int D, bool kDropout>
__global__ void __launch_bounds__(kThreads) dkv_kernel(const AttentionCall<S> call, int64_t groups, int tiles) {
  using T = Acc<S>;
  using Q = Tile<T, D>;
  constexpr int R = Q::R;
  extern __shared__ __align__(16) unsigned char memory[];
  T *q = reinterpret_cast<T*>(memory), *dy = q + Q::kElements, *k = dy + Q::kElements, *v = k + Q::kElements;
  T *p = v + Q::kElements, *ds = p + Q::kScores;
  __shared__ PairState<T, R> state;

  const Heads& heads = call.heads;
  const BlockTask task = block_task(call, groups, tiles, false);
  const int64_t group = task.group;
  const int first_key = task.tile * R, end_key = min(first_key + R, heads.capacity);
  const int32_t *ids = call.ids_of(group), *key_ids = call.key_ids_of(group);
  const IdRange keys = id_range(key_ids, first_key, end_key);
  DropoutMask mask{};
  if constexpr (kDropout) mask = call.dropout.mask();

  load_keys<S, D>(k, call, call.k, heads.hd, group, first_key, end_key);
  load_keys<S, D>(v, call, call.v, heads.hd_v, group, first_key, end_key);
  Product<T, D> dk = {}, dv = {};
  const Tiles tiles_of_rows{ids, call.by_document, R, heads.rows_of(end_key - 1), heads.rep};
  for (int row = tiles_of_rows.next(tiles_of_rows.begin_of(heads.first_row_of(first_key)), keys);
       row < tiles_of_rows.end; row = tiles_of_rows.next(tiles_of_rows.after(row), keys)) {
    const int end = tiles_of_rows.end_of(row);
    __syncthreads();
    load_queries<S, D>(q, call, call.q, heads.hd, group, row);
    load_queries<S, D>(dy, call, call.dy, heads.hd_v, group, row);
    load_pair_state<S, R>(state, call, group, row, end, ids);
    __syncthreads();
    pairs_step<S, D, kDropout>(p, ds, q, dy, k, v, state, call, mask, first_key, end_key, key_ids);
    __syncthreads();
    add_product<T, D>(dk, ds, R + 1, 1, q);
    add_product<T, D>(dv, p, R + 1, 1, dy);
  }
  store_product<S, D>(
      dk, heads.hd,
      [&](int r) { return first_key + r < end_key ? call.dk + heads.key(group, first_key + r, heads.hd) : nullptr; },
      [&](int) { return call.scale; });
  store_product<S, D>(
      dv, heads.hd_v,
      [&](int r) { return first_key + r < end_key ? call.dv + heads.key(group, first_key + r, heads.hd_v) : nullptr; },
      [&](int) { return T(1); });
}

}  // namespace witan::kernels::cuda::plain
