// Products of bfloat16 with float32 on the tensor cores. A float32 is the sum of three bfloat16s of 8 + 8 + 8 bits,
// each the nearest to the remainder of those before it. Products with each part are exact in float32, and are summed in
// float32, so the result is as precise as with float32 multiply-adds. (The parts of an infinity make a NaN.)
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/mma.cuh"
#include "witan/kernels/moe/router.h"

namespace witan::kernels::cuda::wide {

using Bf16 = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr int kSide = 64;           // rows and columns of a chunk of a float32 matrix
constexpr int kStride = kSide + 8;  // between its rows in shared memory: reads of 8 rows have no bank conflicts
constexpr int kPartElements = kSide * kStride;  // of one part of a chunk
constexpr int kPartBytes = kPartElements * 2;

// Splits (low, high) into parts whose sum is exact if there are three of them.
template <int kParts>
__device__ __forceinline__ void split(uint32_t (&parts)[kParts], float low, float high) {
#pragma unroll
  for (uint32_t& part : parts) {
    part = pack_pair<Bf16>(low, high);
    low -= __uint_as_float(part << 16);
    high -= __uint_as_float(part & 0xffff0000u);
  }
}

// Row-major and contiguous; columns are a multiple of 8.
struct Matrix {
  const float* data;
  int64_t rows;
  int columns;
  bool packed;  // begins at a multiple of 16 bytes
};

// The order of a chunk's columns in shared memory.
enum class Order : uint8_t {
  as_they_are,
  // Within each 32 columns, the four pairs that a lane holds of a product 32 wide are adjacent columns.
  lanes_adjacent
};
// The place of the two columns from `column` on: pair 4 t + j of 32 columns is lane t's in the j-th product.
template <Order kOrder>
__device__ __forceinline__ int place_of(int column) {
  if constexpr (kOrder == Order::as_they_are) return column;
  const int pair = column % 32 / 2;
  return column / 32 * 32 + pair % 4 * 8 + pair / 4 * 2;
}

// A chunk of a float32 matrix on its way to shared memory, 16 values per thread.
class Chunk {
 public:
  // Loads the chunk at (row, column), with zeros beyond the matrix.
  __device__ __forceinline__ void load(const Matrix& from, int64_t row, int column) {
    const int own_column = column + kColumn * (threadIdx.x % kLanes);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t own_row = row + threadIdx.x / kLanes + i * (kThreads / kLanes);
      at_[i] = {};
      if (own_row >= from.rows || own_column >= from.columns) continue;
      const float* const data = from.data + own_row * from.columns + own_column;
      at_[i] = from.packed ? load_pack<float, kColumn>(data) : Pack<float, kColumn>{data[0], data[1], data[2], data[3]};
    }
  }
  // Stores its first kParts parts, one after the other.
  template <int kParts, Order kOrder>
  __device__ __forceinline__ void store(Bf16* to) const {
    const int column = kColumn * (threadIdx.x % kLanes);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      uint32_t first[kParts], second[kParts];
      split(first, at_[i].at[0], at_[i].at[1]);
      split(second, at_[i].at[2], at_[i].at[3]);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        Bf16* const row = to + p * kPartElements + (threadIdx.x / kLanes + i * (kThreads / kLanes)) * kStride;
        *reinterpret_cast<uint32_t*>(row + place_of<kOrder>(column)) = first[p];
        *reinterpret_cast<uint32_t*>(row + place_of<kOrder>(column + 2)) = second[p];
      }
    }
  }

 private:
  static constexpr int kColumn = 4;                                 // columns per access
  static constexpr int kLanes = kSide / kColumn;                    // threads per row
  static constexpr int kEach = kSide * kSide / kColumn / kThreads;  // accesses per thread
  Pack<float, kColumn> at_[kEach];
};

// Starts the copy of kRows x kColumns of x [T, D] at (row, column), with zeros beyond it.
template <int kRows, int kColumns>
__device__ __forceinline__ void copy_rows(Bf16* to, const Bf16* x, int64_t T, int D, int64_t row, int column) {
  constexpr int kPacks = kColumns / 8;
  static_assert(kRows * kPacks % kThreads == 0);
#pragma unroll
  for (int done = 0; done < kRows * kPacks; done += kThreads) {
    const int at = done + static_cast<int>(threadIdx.x), r = at / kPacks, c = at % kPacks * 8;
    const bool wanted = row + r < T && column + c < D;
    copy_async(to + r * (kColumns + 8) + c, wanted ? x + (row + r) * D + column + c : x, wanted);
  }
}

// A warp's 32 x 32 of a product, as 2 x 4 of the instruction's tiles.
using Sums = float[2][4][4];
using RowsA = FragmentA[2];
using ColumnsB = FragmentB[4];

__device__ __forceinline__ void add_product(Sums& sums, const RowsA& a, const ColumnsB& b) {
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n) multiply_add<Bf16>(sums[m][n], a[m], b[n]);
}
__device__ __forceinline__ void set(FragmentA& to, const uint4& from) {
  to = {{from.x, from.y, from.z, from.w}};
}
__device__ __forceinline__ void set(FragmentB& first, FragmentB& second, const uint4& from) {
  first = {{from.x, from.y}};
  second = {{from.z, from.w}};
}

// The offset of a lane's row within 16 x 16 of an operand whose rows in shared memory are kRow elements apart: K-major,
// if rows of memory are rows of a or columns of b, or MN-major, if they run over K.
template <int kRow>
__device__ __forceinline__ int k_major_place_in_b() {
  const int lane = threadIdx.x % 32;
  return (lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 8;
}
template <int kRow>
__device__ __forceinline__ int k_major_place_in_a() {
  const int lane = threadIdx.x % 32;
  return lane % 16 * kRow + lane / 16 * 8;
}
// For an MN-major operand, a's and b's offsets are exchanged.
template <int kRow>
__device__ __forceinline__ int mn_major_place_in_b() {
  return k_major_place_in_a<kRow>();
}
template <int kRow>
__device__ __forceinline__ int mn_major_place_in_a() {
  return k_major_place_in_b<kRow>();
}

inline Matrix matrix(const Tensor& tensor) {
  return {ptr<float>(tensor), tensor.size(0), static_cast<int>(tensor.size(1)), packs<float>(tensor.raw(), 4)};
}
inline unsigned tiles(int64_t size, int64_t tile) {
  return static_cast<unsigned>((size + tile - 1) / tile);
}

}  // namespace witan::kernels::cuda::wide

namespace witan::kernels::cuda {

// wide_linear() for few rows within RowProducts, with the bits of many rows. Returns false, and does nothing, for more
// rows than FewRows::kMostWide, rows of the weight that are too long for shared memory, or a thread without both
// scopes.
bool few_wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w);

}  // namespace witan::kernels::cuda

// wide_linear() and its backward (kernels/moe/router.h) with Hopper's warpgroup multiplies, for more than 64 experts.

namespace witan::kernels::cuda {

// Whether the product below supports these shapes and addresses. The answer does not depend on the number of rows, so
// that a row of y has the same bits whichever other rows are computed with it.
bool takes_wide_hopper(Stream& stream, const Tensor& x, int64_t E);
void wide_linear_hopper(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w);

// Whether the backward's scratch also fits in the stream's scratch memory.
bool takes_wide_backward_hopper(Stream& stream, const Tensor& x, int64_t E);
void wide_linear_backward_input_hopper(Stream& stream, const Tensor& dx, Write write, const Tensor& dy,
                                       const Tensor& w);

// Sums over strips of tokens, [strips, E, D] in the stream's scratch memory.
struct WideStrips {
  const float* sums;
  int64_t strips;
};
WideStrips wide_linear_strips_hopper(Stream& stream, const Tensor& dy, const Tensor& x);

}  // namespace witan::kernels::cuda
