// The plain epilogues of the grouped products: they store sums in bfloat16, float16 or float32, or add them to the
// result, and may also sum the stored values (BlockSums, grouped_block_sums.cuh).
#pragma once

#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/mma.cuh"
#include "witan/kernels/grouped/cuda/grouped_gemm_hopper.cuh"

namespace witan::kernels::cuda {

// An epilogue without block sums.
struct NoSums {
  static constexpr bool kWanted = false;
  template <class T, int kColumns>
  struct Of {};
  template <class Found>
  __device__ __forceinline__ void store(const Found&, const Part&, int) const {}
};

// Transposes within a quad: lane q has value[i] of column i before, and lane i's value of column q afterwards.
template <class V>
__device__ __forceinline__ void transpose_in_quad(V (&value)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = threadIdx.x & static_cast<unsigned>(bit);
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if (low & bit) continue;
      const V got = __shfl_xor_sync(0xffffffffu, upper ? value[low] : value[low + bit], bit);
      value[low] = upper ? got : value[low];
      value[low + bit] = upper ? value[low + bit] : got;
    }
  }
}

// Moves 64 columns of a warp's 16 rows to or from memory through the warp's own shared memory, in whole rows of 128
// bytes. Pieces of 16 bytes are permuted within each row, so that neither reads nor writes have bank conflicts.
struct Rows64 {
  static constexpr int kColumns = 64, kBytes = 16 * kColumns * 2;
  struct Unseen {
    template <class Pack8>
    __device__ __forceinline__ void operator()(const Pack8&) const {}
  };

  // Stores pair(j, half), the lane's two columns of the j-th 8, in its row or in the 8th after it. `to`, `rows` and
  // `columns` are counted from the warp's first row and first column; elements outside are not stored. `seen`: see
  // send().
  template <class T, class Pair, class Seen = Unseen>
  static __device__ __forceinline__ void store(T* to, int64_t row_stride, int rows, int columns, uint8_t* staging,
                                               const Pair& pair, const Seen& seen = {}) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2)
      lay_out(staging, j, {pair(j, 0), pair(j, 1), pair(j + 1, 0), pair(j + 1, 1)});
    send(to, row_stride, rows, columns, staging, seen);
  }

  // Begins to copy the elements inside, and zeros for the columns after the last, to `staging`, which the warp no
  // longer reads. They have arrived once each lane has waited for its copies and the warp has synchronised.
  template <class T>
  static __device__ __forceinline__ void fetch(const T* from, int64_t row_stride, int rows, int columns,
                                               uint8_t* staging) {
    const int lane = static_cast<int>(threadIdx.x) % 32, piece = lane % 8;
    const bool inside = piece * 8 < columns;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8;
      if (row < rows) copy_async(at(staging, row, piece), from + row * row_stride + (inside ? piece * 8 : 0), inside);
    }
  }

  // The lane's pairs of the j-th 8 columns and of the next 8, in its row and in the 8th after it.
  static __device__ __forceinline__ uint4 found(uint8_t* staging, int j) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return load_matrices(at(staging, lane % 16, j + lane / 16));
  }
  static __device__ __forceinline__ void lay_out(uint8_t* staging, int j, const uint4& pairs) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    store_matrices(at(staging, lane % 16, j + lane / 16), pairs.x, pairs.y, pairs.z, pairs.w);
  }
  // Stores the staged rows. Calls seen(pack) with the values that the lane stores, 8 columns at a time.
  template <class T, class Seen = Unseen>
  static __device__ __forceinline__ void send(T* to, int64_t row_stride, int rows, int columns, uint8_t* staging,
                                              const Seen& seen = {}) {
    const int lane = static_cast<int>(threadIdx.x) % 32, piece = lane % 8;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8;
      const auto pack = load_pack<T, 8>(reinterpret_cast<T*>(at(staging, row, piece)));
      if (row >= rows || piece * 8 >= columns) continue;
      store_pack(to + row * row_stride + piece * 8, pack);
      seen(pack);
    }
  }

 private:
  static __device__ __forceinline__ uint8_t* at(uint8_t* staging, int row, int piece) {
    return staging + row * (kColumns * 2) + (piece ^ row % 8) * 16;
  }
};

// Stores sums rounded to T, a 16-bit type.
template <class T, class Sums = NoSums>
struct Store {
  static constexpr bool kAccumulates = false;
  template <int kColumns>
  static constexpr int kStaging = Rows64::kBytes;
  T* out;
  int64_t expert_stride, row_stride;
  Sums block_sums = {};

  template <int kColumns>
  __device__ __forceinline__ void operator()(const float (&sums)[kColumns / 2], const Part& part,
                                             uint8_t* staging) const {
    const int row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
    T* const to = out + part.expert * expert_stride + (part.row + row) * row_stride + part.column;
    static_assert(kColumns % Rows64::kColumns == 0);
    typename Sums::template Of<T, kColumns> found{};
#pragma unroll
    for (int first = 0; first < kColumns; first += Rows64::kColumns)
      Rows64::store(
          to + first, row_stride, part.rows - row, part.columns - first, staging,
          [&](int j, int half) {
            const int i = (first + j * 8) / 2 + half * 2;
            return pack_pair<T>(sums[i], sums[i + 1]);
          },
          [&](const Pack<T, 8>& pack) {
            if constexpr (Sums::kWanted) found[first / kSummedColumns].add(pack);
          });
    block_sums.store(found, part, row);
  }
  __device__ __forceinline__ void finish() const {}
};

// Adds each sum in float32 to the stored bfloat16, and rounds once. The lanes of a quad exchange sums first, so that
// each lane has 16 adjacent bytes and a quad has 64.
template <class Sums = NoSums>
struct Add {
  static constexpr bool kAccumulates = true;
  template <int kColumns>
  static constexpr int kStaging = 0;
  __nv_bfloat16* out;
  int64_t expert_stride, row_stride;
  Sums block_sums = {};

  template <int kColumns>
  __device__ __forceinline__ void operator()(const float (&sums)[kColumns / 2], const Part& part, uint8_t*) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    __nv_bfloat16* const base = out + part.expert * expert_stride + part.row * row_stride + part.column;
    typename Sums::template Of<__nv_bfloat16, kColumns> found{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + lane / 4 + half * 8;
#pragma unroll
      for (int first = 0; first < kColumns; first += kQuadColumns) {
        const int column = first + lane % 4 * 8;
        const bool inside = row < part.rows && column < part.columns;
        add(base + row * row_stride + column, inside, sums, first / 2 + half * 2,
            [&](const Pack<__nv_bfloat16, 8>& pack) {
              if constexpr (Sums::kWanted) found[first / kSummedColumns].add(pack);
            });
      }
    }
    block_sums.store(found, part, warp * 16);
  }
  __device__ __forceinline__ void finish() const {}

 private:
  static constexpr int kQuadColumns = 32;  // columns of a quad's stores

  // Called by all lanes; the lane's two values of each 8 columns are sums[at], sums[at + 1], sums[at + 4] … Calls
  // seen(pack) with the values that the lane stores.
  template <int kSums, class Seen>
  static __device__ __forceinline__ void add(__nv_bfloat16* to, bool inside, const float (&sums)[kSums], int at,
                                             const Seen& seen) {
    Pack<__nv_bfloat16, 8> pack;
    if (inside) pack = load_pack<__nv_bfloat16, 8>(to);
    float low[4] = {sums[at], sums[at + 4], sums[at + 8], sums[at + 12]};
    float high[4] = {sums[at + 1], sums[at + 5], sums[at + 9], sums[at + 13]};
    transpose_in_quad(low);
    transpose_in_quad(high);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pack.at[2 * i] = convert<__nv_bfloat16>(convert<float>(pack.at[2 * i]) + low[i]);
      pack.at[2 * i + 1] = convert<__nv_bfloat16>(convert<float>(pack.at[2 * i + 1]) + high[i]);
    }
    if (!inside) return;
    store_pack(to, pack);
    seen(pack);
  }
};

// Stores or adds float32 sums by the copy engine: each warp stages pieces of its 16 rows in its own shared memory, and
// each of 16 lanes starts the copy of one row. Each call adds to an element once, so the order does not matter.
// `kPieceOf`: columns that are staged at a time; with fewer, more shared memory is left for the ring.
template <bool kAdd, int kPieceOf = 128, class Sums = NoSums>
struct BulkStore {
  static_assert(!kAdd || std::is_same_v<Sums, NoSums>,
                "the copy engine adds in memory, where the warps do not see the sums");
  static constexpr bool kAccumulates = kAdd;
  static constexpr int kPiece = kPieceOf;
  static constexpr int kPitch = kPiece * 4 + 32;  // between rows: avoids bank conflicts in a warp's stores
  template <int kColumns>
  static constexpr int kStaging = 16 * kPitch;
  float* out;
  int64_t expert_stride, row_stride;
  Sums block_sums = {};

  template <int kColumns>
  __device__ __forceinline__ void operator()(const float (&sums)[kColumns / 2], const Part& part,
                                             uint8_t* staging) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    const int row = warp * 16 + lane;
    float* const to = out + part.expert * expert_stride + (part.row + row) * row_stride + part.column;
    static_assert(kColumns % kPiece == 0);
    typename Sums::template Of<float, kColumns> found{};
#pragma unroll
    for (int first = 0; first < kColumns; first += kPiece) {
      bulk_wait_read();
      __syncwarp();
      lay_out(sums, first, staging + lane / 4 * kPitch + lane % 4 * 8);
      fence_shared_for_async();
      __syncwarp();
      const int bytes = min(kPiece, part.columns - first) * static_cast<int>(sizeof(float));
      if (lane < 16 && row < part.rows && bytes > 0) {
        if constexpr (kAdd)
          bulk_add(to + first, staging + lane * kPitch, bytes);
        else
          bulk_store(to + first, staging + lane * kPitch, bytes);
      }
      bulk_commit();
      if constexpr (Sums::kWanted) sum_up(found, sums, first, part, warp * 16 + lane / 4);
    }
    block_sums.store(found, part, warp * 16);
  }
  // The block's shared memory must outlive the copies from it.
  __device__ __forceinline__ void finish() const {
    bulk_wait_read();
  }

 private:
  template <int kSums>
  static __device__ __forceinline__ void lay_out(const float (&sums)[kSums], int first, uint8_t* to) {
#pragma unroll
    for (int column = 0; column < kPiece; column += 8)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (first + column) / 2 + half * 2;
        *reinterpret_cast<float2*>(to + half * 8 * kPitch + column * 4) = make_float2(sums[at], sums[at + 1]);
      }
  }
  // `row`: the first of the lane's two rows; the other is the 8th after it.
  template <class Found, int kSums>
  static __device__ __forceinline__ void sum_up(Found& found, const float (&sums)[kSums], int first, const Part& part,
                                                int row) {
#pragma unroll
    for (int column = 0; column < kPiece; column += 8)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (first + column) / 2 + half * 2;
        if (first + column < part.columns && row + half * 8 < part.rows)
          found[(first + column) / kSummedColumns].add(sums[at], sums[at + 1]);
      }
  }
};

}  // namespace witan::kernels::cuda
