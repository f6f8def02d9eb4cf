// Attention for bfloat16 and float16 on the tensor cores. A warp owns 16 rows from their scores to the result, so that
// one product's sums become the next one's operand in registers. Operands that a block reads repeatedly come through
// two buffers in shared memory: one is filled while the other is used.
#pragma once

#include "witan/kernels/attention/cuda/attention_shape.cuh"
#include "witan/kernels/common/cuda/mma.cuh"

namespace witan::kernels::cuda::tensor {

constexpr float kLog2e = 1.44269504088896340736f, kLn2 = 0.69314718055994530942f;

// Rows of a tile of D columns begin 16 bytes past a multiple of 128, so that reads of 8 rows have no bank conflicts.
template <int D>
inline constexpr int kStride = D + 8;

// Sums of 16 rows by N columns.
template <int N>
using Sums = float[N / 8][4];

template <int N>
__device__ __forceinline__ void clear(Sums<N>& sums) {
#pragma unroll
  for (auto& sum : sums)
#pragma unroll
    for (float& value : sum) value = 0;
}

// Rounds each product: fused with a later subtraction or not, as the compiler likes, kernels would differ.
template <int N>
__device__ __forceinline__ void scale_scores(Sums<N>& s, float scale) {
#pragma unroll
  for (auto& four : s)
#pragma unroll
    for (float& score : four) score = __fmul_rn(score, scale);
}

// Loads rows [0, R) of a tile, `width` columns each, with kThreads threads, from `row(r)`; a row is zeros if that is
// null.
template <int D, int R, int kThreads, class T, class Row>
__device__ __forceinline__ void load_tile(T* to, const AttentionCall<T>& call, int width, const Row& row) {
  constexpr int kPacks = D / 8;
  for (int i = threadIdx.x; i < R * kPacks; i += kThreads) {
    const int r = i / kPacks, d = i % kPacks * 8;
    const T* from = row(r);
    T* at = to + r * kStride<D> + d;
    if (call.packed) {
      const bool wanted = from && d < width;
      copy_async(at, wanted ? from + d : call.q, wanted);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) at[e] = from && d + e < width ? from[d + e] : convert<T>(0.f);
    }
  }
}
template <int D, int R, int kThreads, class T>
__device__ __forceinline__ void load_keys(T* to, const AttentionCall<T>& call, const T* keys, int width, int64_t group,
                                          int first, int end) {
  load_tile<D, R, kThreads>(to, call, width, [&](int r) {
    return first + r < end ? keys + call.heads.key(group, first + r, width) : nullptr;
  });
}
template <int D, int R, int kThreads, class T>
__device__ __forceinline__ void load_queries(T* to, const AttentionCall<T>& call, const T* queries, int width,
                                             int64_t group, int first) {
  load_tile<D, R, kThreads>(to, call, width, [&](int r) {
    return first + r < call.heads.rows ? queries + call.heads.query(group, first + r, width) : nullptr;
  });
}

// sums [16, N] += a [16, D] b [N, D]^T, both tiles in shared memory.
template <int N, int D, class T>
__device__ __forceinline__ void add_scores(Sums<N>& sums, const T* a, const T* b) {
  const int lane = threadIdx.x % 32;
  const T* a_row = a + lane % 16 * kStride<D> + lane / 16 * 8;
  const T* b_row = b + (lane / 16 * 8 + lane % 8) * kStride<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    const uint4 m = load_matrices(a_row + d);
    const FragmentA left{{m.x, m.y, m.z, m.w}};
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      const uint4 right = load_matrices(b_row + n * kStride<D> + d);
      multiply_add<T>(sums[n / 8], left, {{right.x, right.y}});
      multiply_add<T>(sums[n / 8 + 1], left, {{right.z, right.w}});
    }
  }
}

// sums [16, N] += p [16, K] b [K, columns of b], with b in shared memory, its rows D apart, from its first column on.
template <int N, int K, int D, class T>
__device__ __forceinline__ void add_product(Sums<N>& sums, const Sums<K>& p, const T* b) {
  const int lane = threadIdx.x % 32;
  const T* b_row = b + lane % 16 * kStride<D> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    const auto &low = p[k / 8], &high = p[k / 8 + 1];
    const FragmentA left{{pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]), pack_pair<T>(high[0], high[1]),
                          pack_pair<T>(high[2], high[3])}};
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      const uint4 right = load_matrices_transposed(b_row + k * kStride<D> + n);
      multiply_add<T>(sums[n / 8], left, {{right.x, right.y}});
      multiply_add<T>(sums[n / 8 + 1], left, {{right.z, right.w}});
    }
  }
}

// Stores row `half` (g or g + 8) of sums [16, N], times `factor`, to to[0..end), for the columns from `column` on.
template <int N, class T>
__device__ __forceinline__ void store_row(T* to, const Sums<N>& sums, int half, float factor, int column, int end,
                                          bool packed) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    const int d = column + n * 8 + static_cast<int>(threadIdx.x % 4) * 2;
    const float low = sums[n][2 * half] * factor, high = sums[n][2 * half + 1] * factor;
    if (packed && d < end) {
      *reinterpret_cast<uint32_t*>(to + d) = pack_pair<T>(low, high);
    } else {
      if (d < end) to[d] = convert<T>(low);
      if (d + 1 < end) to[d + 1] = convert<T>(high);
    }
  }
}

// The sum and the maximum over the four lanes that share a row.
__device__ __forceinline__ float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
__device__ __forceinline__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// The logarithm of the sum of a row's exponentials, whose largest score `top` is in units of log2. Kernels that must
// have each other's bits cannot leave it to the compiler whether a product and a sum are one operation.
__device__ __forceinline__ float log_of_row(float top, float total) {
  return fmaf(top, kLn2, logf(total));
}

// Dropout's factors for probabilities (row, key) and (row, key + 1), with key even; `row` is the first block of the
// row's probabilities.
__device__ __forceinline__ float2 dropout_factors(const DropoutMask& mask, int64_t row, int key) {
  const uint4 words = mask.block(static_cast<uint64_t>(row) + static_cast<uint64_t>(key / 4));
  const bool upper = key % 4 != 0;
  return {mask.factor<float>(upper ? words.z : words.x), mask.factor<float>(upper ? words.w : words.y)};
}
__device__ __forceinline__ float dropout_factor(const DropoutMask& mask, int64_t row, int key) {
  const float2 two = dropout_factors(mask, row, key / 2 * 2);
  return key % 2 ? two.y : two.x;
}

// A block's query rows. A warp owns 16 of them, and each lane rows g and g + 8.
struct WarpRows {
  int first_row, last_row;  // of the block
  int row[2];
  RowSight sight[2];
  int shared_from, shared;  // by position, every row of the warp sees keys [shared_from, shared),
  int first_key, keys;      // and some row of the block [first_key, keys)
  IdRange ids;              // of the block

  __device__ __forceinline__ WarpRows(const Heads& heads, const int32_t* id, int tile, int rows_per_tile)
      : first_row(tile * rows_per_tile), last_row(min(first_row + rows_per_tile, heads.rows) - 1) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row[half] = first_row + warp * 16 + lane / 4 + 8 * half;
      sight[half] = row_sight(heads, id, row[half]);
    }
    shared_from = heads.first_key_of(min(first_row + warp * 16 + 15, last_row));
    shared = heads.keys_of(min(first_row + warp * 16, last_row));
    first_key = heads.first_key_of(first_row), keys = heads.keys_of(last_row);
    ids = row_ids(heads, id, first_row, last_row);
  }
  __device__ __forceinline__ bool busy() const {
    return first_row + static_cast<int>(threadIdx.x) / 32 * 16 <= last_row;
  }
};

// Sets the scores of keys from `first` on to minus infinity for rows that do not see them, and from `end` on for all.
template <int N>
__device__ __forceinline__ void hide_unseen(Sums<N>& s, const WarpRows& rows, const int32_t* key_ids, int first,
                                            int end) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = first + n * 8 + static_cast<int>(threadIdx.x % 4) * 2 + e % 2;
      if (key >= end || !rows.sight[e / 2].sees(key, key_ids)) s[n][e] = -INFINITY;
    }
}

// The same, if any has to be hidden.
template <int N>
__device__ __forceinline__ void hide(Sums<N>& s, const WarpRows& rows, const int32_t* key_ids, int first, int end) {
  const bool shared = first >= rows.shared_from && first + N <= rows.shared &&
                      (!key_ids || id_range(key_ids, first, first + N).equals(rows.ids));
  if (!shared) hide_unseen<N>(s, rows, key_ids, first, end);
}

// The first blocks of the probabilities of a lane's two rows.
template <class T>
__device__ __forceinline__ void mask_rows(int64_t (&to)[2], const AttentionCall<T>& call, int64_t group,
                                          const WarpRows& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) to[half] = call.heads.mask_row(group, min(rows.row[half], rows.last_row));
}

// Multiplies x [16, N], of keys from `first` on, by the mask.
template <int N>
__device__ __forceinline__ void drop(Sums<N>& x, const DropoutMask& mask, const int64_t (&row)[2], const Runs& keys,
                                     int first) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = first + n * 8 + static_cast<int>(threadIdx.x % 4) * 2;
      const float2 factors = dropout_factors(mask, row[half], keys.at(key));
      x[n][2 * half] *= factors.x, x[n][2 * half + 1] *= factors.y;
    }
}

// Two buffers in shared memory that tiles use alternately. Each next() waits for the copies of its tile and starts
// those of the following one.
template <class Load>
class Pipeline {
 public:
  __device__ __forceinline__ Pipeline(const Load& load, int first, int end) : load_(load), end_(end) {
    if (first < end_) load_(first, 0);
    commit_copies();
    if (first >= end_) wait_copies<0>();  // a block must not end before its copies
  }
  // Returns the buffer with the current tile. `following` is the tile after it, or the end.
  __device__ __forceinline__ int next(int following) {
    wait_copies<0>();
    __syncthreads();  // the tile is visible to all, and all have used the previous one
    const int buffer = turn_;
    turn_ ^= 1;
    if (following < end_) load_(following, turn_);
    commit_copies();
    return buffer;
  }

 private:
  const Load& load_;
  int end_, turn_ = 0;
};

}  // namespace witan::kernels::cuda::tensor
