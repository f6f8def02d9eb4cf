// A thread block converts 128 by 128 bfloat16 numbers to e4m3 or e5m2, as they are and transposed, in one pass. Each
// thread has 8 rows by 8 columns. For the transpose, numbers pass through shared memory, so that stores cover 128 bytes
// of a column.
#include <cuda_fp8.h>

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/fp8_scale.h"
#include "witan/kernels/fp8/fp8.h"
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kBlock = static_cast<int>(kFp8Block);
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kEach = 8, kPlaces = kBlock / kEach;  // rows and columns per thread; threads across and down
constexpr uint32_t kMagnitudes = 0x7fff7fffu, kAll = 0xffffffffu;

struct Shared {
  uint32_t largest[kWarps][kBlock / 2];  // of two columns each, or [warp][0]: of everything
  float inverse[kBlock];                 // of columns
  alignas(16) uint8_t turned[kBlock * kBlock];
};

// Converts two numbers, the first into the lower byte.
template <Fp8Format kFormat>
__device__ __forceinline__ uint32_t pair(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE,
                                  kFormat == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2);
}
template <Fp8Format kFormat>
__device__ __forceinline__ uint32_t quad(float a, float b, float c, float d) {
  return pair<kFormat>(a, b) | pair<kFormat>(c, d) << 16;
}
__device__ __forceinline__ uint32_t larger_half(uint32_t pair) {
  return max(pair & 0xffffu, pair >> 16);
}
// The scale of a block: from its own largest magnitude, passed as bfloat16 bits, or from a given magnitude.
template <Fp8Format kFormat>
struct Scaling {
  const float* given;  // null: the block's own

  __device__ __forceinline__ Fp8Scale operator()(uint32_t largest) const {
    return given != nullptr ? fp8_scale(largest << 16, __float_as_uint(*given), kFormat)
                            : fp8_scale(largest << 16, kFormat);
  }
};

// A thread's part of a tile.
struct Part {
  int across, down;         // its place: columns from 8 across on, rows from 8 down on
  uint32_t word[kEach][4];  // 8 numbers of each row

  __device__ __forceinline__ Part()
      : across(static_cast<int>(threadIdx.x) % kPlaces), down(static_cast<int>(threadIdx.x) / kPlaces) {}

  __device__ __forceinline__ int row(int i) const { return down * kEach + i; }
  __device__ __forceinline__ int column(int j) const { return across * kEach + j; }

  // Loads the part; missing rows and columns are zeros. from(i): the first column of the thread's i-th row. `columns`
  // is a multiple of 8; `whole`: every 8 numbers of a row are aligned to 16 bytes.
  template <class From>
  __device__ __forceinline__ void load(const From& from, int rows, int columns, bool whole) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const __nv_bfloat16* const at = from(i) + column(0);
      uint4 four = make_uint4(0, 0, 0, 0);
      if (row(i) < rows && column(0) < columns) four = whole ? *reinterpret_cast<const uint4*>(at) : one_by_one(at);
      word[i][0] = four.x, word[i][1] = four.y, word[i][2] = four.z, word[i][3] = four.w;
    }
  }
  static __device__ uint4 one_by_one(const __nv_bfloat16* at) {
    const auto two = [&](int i) {
      return static_cast<uint32_t>(__bfloat16_as_ushort(at[i])) | static_cast<uint32_t>(__bfloat16_as_ushort(at[i + 1]))
                                                                      << 16;
    };
    return make_uint4(two(0), two(2), two(4), two(6));
  }

  __device__ __forceinline__ void set(int i, const float (&numbers)[kEach]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) word[i][j] = pack_pair<__nv_bfloat16>(numbers[2 * j], numbers[2 * j + 1]);
  }

  __device__ __forceinline__ float at(int i, int j) const {
    const uint32_t both = word[i][j / 2];
    return __uint_as_float(j % 2 == 0 ? both << 16 : both & 0xffff0000u);
  }

  // The largest magnitudes of the thread's columns 2 j and 2 j + 1, in the two halves.
  __device__ __forceinline__ uint32_t largest_of_columns(int j) const {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) largest = __vmaxu2(largest, word[i][j] & kMagnitudes);
    return largest;
  }

  // Stores rows of codes, each number times inverse(i); `to`: the tile's first number.
  template <Fp8Format kFormat, class Inverse>
  __device__ __forceinline__ void store_rows(uint8_t* to, int64_t stride, int rows, int columns,
                                             const Inverse& inverse) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float by = inverse(i);
      const uint2 codes = make_uint2(quad<kFormat>(at(i, 0) * by, at(i, 1) * by, at(i, 2) * by, at(i, 3) * by),
                                     quad<kFormat>(at(i, 4) * by, at(i, 5) * by, at(i, 6) * by, at(i, 7) * by));
      if (row(i) < rows && column(0) < columns) *reinterpret_cast<uint2*>(to + row(i) * stride + column(0)) = codes;
    }
  }

  // Stores columns of codes, each number times inverse(j), to `to` [columns, stride]: the first `rows` of each, a
  // multiple of 16. In shared memory, pieces of 8 rows are permuted within their column, so that there are no bank
  // conflicts.
  template <Fp8Format kFormat, class Inverse>
  __device__ __forceinline__ void store_columns(uint8_t* to, int64_t stride, int rows, int columns, uint8_t* turned,
                                                const Inverse& inverse) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float by = inverse(j);
      const uint2 codes = make_uint2(quad<kFormat>(at(0, j) * by, at(1, j) * by, at(2, j) * by, at(3, j) * by),
                                     quad<kFormat>(at(4, j) * by, at(5, j) * by, at(6, j) * by, at(7, j) * by));
      *reinterpret_cast<uint2*>(turned + column(j) * kBlock + (down ^ across) * 8) = codes;
    }
    __syncthreads();
    const int piece = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int i = 0; i < kBlock * 8 / kThreads; ++i) {
      const int which = static_cast<int>(threadIdx.x) / 8 + i * (kThreads / 8), odd = which / kEach % 2;
      const int place = (2 * piece ^ which / kEach) & ~1;
      const uint4 codes = *reinterpret_cast<const uint4*>(turned + which * kBlock + place * 8);
      if (which < columns && piece * 16 < rows)
        *reinterpret_cast<uint4*>(to + which * stride + piece * 16) =
            odd ? make_uint4(codes.z, codes.w, codes.x, codes.y) : codes;
    }
  }
};

// Computes a scale for each row of the tile, each by the row's 16 threads; holds the inverses of the thread's rows.
struct RowInverses {
  float own;  // of row (lane % 8)

  template <Fp8Format kFormat>
  __device__ __forceinline__ RowInverses(const Part& part, float* scales, int rows, const Scaling<kFormat>& scaling) {
    uint32_t two[kEach / 2];  // rows i and i + 4
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
      const auto of = [&](int row) {
        uint32_t largest = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) largest = __vmaxu2(largest, part.word[row][j] & kMagnitudes);
        return larger_half(largest);
      };
      two[i] = of(i) | of(i + kEach / 2) << 16;
#pragma unroll
      for (int apart = kPlaces / 2; apart > 0; apart /= 2)
        two[i] = __vmaxu2(two[i], __shfl_xor_sync(kAll, two[i], apart));
    }
    const int which = part.across % kEach;
    const uint32_t both = which % 4 == 0 ? two[0] : which % 4 == 1 ? two[1] : which % 4 == 2 ? two[2] : two[3];
    const Fp8Scale scale = scaling(which < 4 ? both & 0xffffu : both >> 16);
    own = scale.inverse;
    if (part.across < kEach && part.row(which) < rows) scales[part.row(which)] = scale.scale;
  }
  __device__ __forceinline__ float operator()(int i) const {
    return __shfl_sync(kAll, own, static_cast<int>(threadIdx.x) % 32 / kPlaces * kPlaces + i);
  }
};

// Writes a scale for each column to `scales`, and its inverse to shared memory.
template <Fp8Format kFormat>
__device__ __forceinline__ void find_columns(const Part& part, Shared& shared, float* scales, int columns,
                                             const Scaling<kFormat>& scaling) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t largest = part.largest_of_columns(j);
    largest = __vmaxu2(largest, __shfl_xor_sync(kAll, largest, kPlaces));
    if (lane < kPlaces) shared.largest[warp][part.across * 4 + j] = largest;
  }
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column < kBlock) {
    uint32_t largest = 0;
#pragma unroll
    for (int of = 0; of < kWarps; ++of) largest = __vmaxu2(largest, shared.largest[of][column / 2]);
    const Fp8Scale scale = scaling(column % 2 == 0 ? largest & 0xffffu : largest >> 16);
    shared.inverse[column] = scale.inverse;
    if (column < columns) scales[column] = scale.scale;
  }
  __syncthreads();
}

// A tile's numbers, read from a matrix.
struct GivenNumbers {
  const __nv_bfloat16* x;
  int64_t stride;
  bool whole;  // rows are aligned to 16 bytes

  __device__ __forceinline__ void load(Part& part, int64_t row, int first, int rows, int columns) const {
    part.load([&](int i) { return x + (row + part.row(i)) * stride + first; }, rows, columns, whole);
  }
};

// Rows of x that an index names. Each thread looks up one of the 8 rows that it shares with 15 others.
struct GatheredNumbers {
  GivenNumbers from;
  const int64_t* index;
  uint32_t divisor;

  __device__ __forceinline__ void load(Part& part, int64_t row, int first, int rows, int columns) const {
    const int which = part.row(part.across % kEach);
    const uint32_t own = which < rows ? static_cast<uint32_t>(index[row + which]) / divisor : 0;
    const auto at = [&](int i) {
      const uint32_t found = __shfl_sync(kAll, own, static_cast<int>(threadIdx.x) % 32 / kPlaces * kPlaces + i);
      return from.x + found * from.stride + first;
    };
    part.load(at, rows, columns, from.whole);
  }
};

// Eight numbers of a row; missing ones are zeros.
struct Eight {
  float at[kEach];
  __device__ __forceinline__ Eight(const __nv_bfloat16* from, bool exists) {
    uint4 four = make_uint4(0, 0, 0, 0);
    if (exists) four = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      at[j] = __uint_as_float(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xffff0000u);
  }
};

// The results of swiglu_forward(), by the same expressions, rounded to bfloat16.
struct SwigluNumbers {
  const __nv_bfloat16* h;  // [M, 2 F]
  const float* s;          // [M], or null
  int64_t F;

  __device__ __forceinline__ void load(Part& part, int64_t row, int first, int rows, int columns) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool exists = part.row(i) < rows && part.column(0) < columns;
      const int64_t t = row + part.row(i);
      const float weight = s != nullptr && exists ? s[t] : 1;
      const __nv_bfloat16* const from = h + t * 2 * F + first + part.column(0);
      const Eight gate(from, exists), up(from + F, exists);
      float value[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) value[j] = Silu::at(gate.at[j]).value * weight * up.at[j];
      part.set(i, value);
    }
  }
};

// Blocks of rows, and the groups that they belong to.
struct Blocks {
  int M;
  const int2* table;     // null: one group of all rows
  const int64_t* begin;  // of groups, [sources, experts]
  int experts, sources;

  // The block's first row, and its number of rows.
  __device__ __forceinline__ int2 range(int block) const {
    return table ? table[block] : make_int2(block * kBlock, min(kBlock, M - block * kBlock));
  }
  // The group of a block; blocks are ordered by expert.
  __device__ __forceinline__ int64_t group(int block) const {
    if (table == nullptr) return 0;
    return fp8_group_of(block, static_cast<int64_t>(experts) * sources,
                        [this](int64_t g) { return begin[g % sources * experts + g / sources]; });
  }
};

struct Quantised : Blocks {
  int K;
  uint8_t* rows;  // null: not wanted
  float* row_scales;
  uint8_t* columns;  // null: not wanted
  float* column_scales;
  int64_t column_stride;
  const float* given;  // per group; null: blocks are scaled by their own largest magnitude

  // Stores the tile of block `block` whose first column is `first`, a multiple of 128. Called by all threads.
  template <Fp8Format kFormat>
  __device__ __forceinline__ void store(const Part& part, Shared& shared, int block, int2 range, int first) const {
    const int row = range.x, count = range.y, width = min(kBlock, K - first), across = first / kBlock;
    const Scaling<kFormat> scaling{given != nullptr ? given + group(block) : nullptr};
    if (rows != nullptr) {
      const RowInverses inverse(part, row_scales + static_cast<int64_t>(across) * M + row, count, scaling);
      part.store_rows<kFormat>(rows + static_cast<int64_t>(row) * K + first, K, count, width, inverse);
    }
    if (columns == nullptr) return;
    find_columns(part, shared, column_scales + static_cast<int64_t>(block) * K + first, width, scaling);
    part.store_columns<kFormat>(columns + first * column_stride + static_cast<int64_t>(block) * kBlock, column_stride,
                                kBlock, width, shared.turned, [&](int j) { return shared.inverse[part.column(j)]; });
  }
};

template <Fp8Format kFormat, class Numbers>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(const __grid_constant__ Numbers numbers, const __grid_constant__ Quantised q) {
  __shared__ Shared shared;
  const int block = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * kBlock;
  const int2 range = q.range(block);
  if (range.y == 0) return;
  Part part;
  numbers.load(part, range.x, first, range.y, min(kBlock, q.K - first));
  q.store<kFormat>(part, shared, block, range, first);
}

// Raises `to` to the largest magnitude of all threads' parts. Bits of magnitudes have the order of their values, and a
// maximum does not depend on the order of its operands.
__device__ __forceinline__ void raise(float* to, const Part& part) {
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) largest = __vmaxu2(largest, part.largest_of_columns(j));
  largest = warp_max(larger_half(largest));
  if (threadIdx.x % 32 == 0 && largest > 0) atomicMax(reinterpret_cast<unsigned*>(to), largest << 16);
}

template <class Numbers>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(float* amax, const __grid_constant__ Numbers numbers, int K, const __grid_constant__ Blocks blocks) {
  const int block = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * kBlock;
  const int2 range = blocks.range(block);
  if (range.y == 0) return;
  Part part;
  numbers.load(part, range.x, first, range.y, min(kBlock, K - first));
  raise(amax + blocks.group(block), part);
}

struct SwigluGradient {
  const __nv_bfloat16 *dy, *h;  // [M, F], [M, 2 F]
  const float* s;               // [M], or null
  float* dots;                  // [F / 128, M], or null
};

// Two tiles of dh = [dgate | dup], with the same rows and the same columns of each half, computed by
// swiglu_backward()'s expressions and rounded to bfloat16.
template <Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    quantise_swiglu_backward_kernel(const __grid_constant__ SwigluGradient of, const __grid_constant__ Quantised q) {
  __shared__ Shared shared;
  const int block = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * kBlock, F = q.K / 2;
  const int2 range = q.range(block);
  if (range.y == 0) return;
  Part gates, ups;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool exists = gates.row(i) < range.y;
    const int64_t t = range.x + gates.row(i);
    const int column = first + gates.column(0);
    const float weight = of.s != nullptr && exists ? of.s[t] : 1;
    const Eight dout(of.dy + t * F + column, exists), gate(of.h + t * 2 * F + column, exists),
        up(of.h + t * 2 * F + F + column, exists);
    float dgate[kEach], dup[kEach], dot = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const auto [value, slope] = Silu::at(gate.at[j]);
      dot += dout.at[j] * value * up.at[j];
      dgate[j] = dout.at[j] * weight * up.at[j] * slope;
      dup[j] = dout.at[j] * weight * value;
    }
    gates.set(i, dgate);
    ups.set(i, dup);
#pragma unroll
    for (int apart = kPlaces / 2; apart > 0; apart /= 2) dot += __shfl_xor_sync(kAll, dot, apart);
    if (of.dots != nullptr && exists && gates.across == 0) of.dots[static_cast<int64_t>(blockIdx.y) * q.M + t] = dot;
  }
  q.store<kFormat>(gates, shared, block, range, first);
  q.store<kFormat>(ups, shared, block, range, F + first);
}

// ds[t] = sum of dots[.., t], in order, with one thread per row of a block.
__global__ void sum_dots_kernel(float* ds, const float* dots, int parts, const __grid_constant__ Quantised q) {
  const int2 range = q.range(static_cast<int>(blockIdx.x));
  if (static_cast<int>(threadIdx.x) >= range.y) return;
  const int64_t t = range.x + static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += dots[static_cast<int64_t>(part) * q.M + t];
  ds[t] = sum;
}

// Block (x, y) of matrix z.
struct GivenWeights {
  const __nv_bfloat16* w;  // [E, N, K]
  bool whole;              // its rows are aligned to 16 bytes
  int N, K;

  __device__ __forceinline__ int row() const { return static_cast<int>(blockIdx.y) * kBlock; }
  __device__ __forceinline__ int column() const { return static_cast<int>(blockIdx.x) * kBlock; }
  __device__ __forceinline__ int rows() const { return min(kBlock, N - row()); }
  __device__ __forceinline__ int columns() const { return min(kBlock, K - column()); }
  __device__ __forceinline__ int64_t of_expert() const { return static_cast<int64_t>(N) * K * blockIdx.z; }
  __device__ __forceinline__ void load(Part& part) const {
    const __nv_bfloat16* const tile = w + of_expert() + static_cast<int64_t>(row()) * K + column();
    part.load([&](int i) { return tile + static_cast<int64_t>(part.row(i)) * K; }, rows(), columns(), whole);
  }
};

__global__ void __launch_bounds__(kThreads)
    weight_amax_kernel(float* amax, const __grid_constant__ GivenWeights weights) {
  Part part;
  weights.load(part);
  raise(amax + blockIdx.z, part);
}

struct QuantisedWeights : GivenWeights {
  uint8_t *values, *transposed;  // null: not wanted
  float* scales;
  const float* given;  // per matrix; null: blocks are scaled by their own largest magnitude
};

__global__ void __launch_bounds__(kThreads) quantise_weights_kernel(const __grid_constant__ QuantisedWeights q) {
  __shared__ Shared shared;
  const int64_t of_expert = q.of_expert();
  const int n = q.row(), k = q.column(), rows = q.rows(), columns = q.columns();
  Part part;
  q.load(part);
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) largest = __vmaxu2(largest, part.largest_of_columns(j));
  largest = warp_max(larger_half(largest));
  if (threadIdx.x % 32 == 0) shared.largest[threadIdx.x / 32][0] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) largest = max(largest, shared.largest[warp][0]);
  constexpr auto kFormat = Fp8Format::e4m3;
  const Fp8Scale scale = Scaling<kFormat>{q.given != nullptr ? q.given + blockIdx.z : nullptr}(largest);
  if (threadIdx.x == 0) q.scales[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = scale.scale;
  const auto inverse = [&](int) { return scale.inverse; };
  if (q.values != nullptr)
    part.store_rows<kFormat>(q.values + of_expert + static_cast<int64_t>(n) * q.K + k, q.K, rows, columns, inverse);
  if (q.transposed != nullptr)
    part.store_columns<kFormat>(q.transposed + of_expert + static_cast<int64_t>(k) * q.N + n, q.N, rows, columns,
                                shared.turned, inverse);
}

uint8_t* codes(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<uint8_t*>(tensor.raw()) : nullptr;
}
unsigned blocks_of(int64_t numbers) {
  return static_cast<unsigned>(fp8_blocks(numbers));
}

// The scales of a matrix of M rows.
Blocks device_blocks(const Fp8RowBlocks& blocks, int64_t M) {
  assert(blocks.most > 0);
  const RowGroups& groups = blocks.groups;
  const bool grouped = groups.begin.defined();
  return {static_cast<int>(M), ptr<int2>(blocks.table),
          ptr<int64_t>(groups.source_begin.defined() ? groups.source_begin : groups.begin),
          grouped ? static_cast<int>(groups.experts()) : 1, static_cast<int>(groups.sources())};
}

// Kernel arguments for a matrix [M, K].
Quantised quantised(const Fp8Rows& rows, const Fp8Columns& columns, const Shape& matrix, const Fp8RowBlocks& blocks,
                    const Tensor& given = {}) {
  return {device_blocks(blocks, matrix[0]),
          static_cast<int>(matrix[1]),
          codes(rows.values),
          ptr<float>(rows.scales),
          codes(columns.values),
          ptr<float>(columns.scales),
          columns.values.defined() ? columns.values.size(1) : 0,
          ptr<float>(given)};
}

Fp8Format format_of(const Fp8Rows& rows, const Fp8Columns& columns) {
  return rows.values.defined() ? rows.format : columns.format;
}

// Calls body(numbers) for x [.., K], read directly or through an index.
template <class Body>
void with_numbers(const Tensor& x, const RowIndex& x_rows, const Body& body) {
  assert(x.dtype() == DType::bf16);
  const GivenNumbers numbers{ptr<__nv_bfloat16>(x), x.stride(0), packs<__nv_bfloat16>(x.raw(), x.stride(0))};
  if (!x_rows.defined()) return body(numbers);
  // Indices, and therefore rows, fit in 32 bits.
  assert(x_rows.divisor > 0 && x.size(0) <= UINT32_MAX / x_rows.divisor);
  body(GatheredNumbers{numbers, ptr<int64_t>(x_rows.index), static_cast<uint32_t>(x_rows.divisor)});
}

GivenWeights given_weights(const Tensor& w) {
  assert(w.dtype() == DType::bf16);
  return {ptr<__nv_bfloat16>(w), packs<__nv_bfloat16>(w.raw(), w.size(2)), static_cast<int>(w.size(1)),
          static_cast<int>(w.size(2))};
}
dim3 grid_of(const Tensor& w) {
  return {blocks_of(w.size(2)), blocks_of(w.size(1)), static_cast<unsigned>(w.size(0))};
}

}  // namespace

void fp8_quantise(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& x,
                  const Fp8RowBlocks& blocks, const Fp8Given& given) {
  const dim3 grid(static_cast<unsigned>(blocks.most), blocks_of(x.size(1)));
  const Quantised to = quantised(rows, columns, {given.rows.capacity(x), x.size(1)}, blocks, given.largest);
  with_numbers(x, given.rows, [&](const auto& numbers) {
    if (format_of(rows, columns) == Fp8Format::e4m3)
      quantise_kernel<Fp8Format::e4m3><<<grid, kThreads, 0, native(stream)>>>(numbers, to);
    else
      quantise_kernel<Fp8Format::e5m2><<<grid, kThreads, 0, native(stream)>>>(numbers, to);
  });
}

void fp8_amax(Stream& stream, const Tensor& amax, const Tensor& x, const Fp8RowBlocks& blocks, const RowIndex& x_rows) {
  const dim3 grid(static_cast<unsigned>(blocks.most), blocks_of(x.size(1)));
  with_numbers(x, x_rows, [&](const auto& numbers) {
    amax_kernel<<<grid, kThreads, 0, native(stream)>>>(ptr<float>(amax), numbers, static_cast<int>(x.size(1)),
                                                       device_blocks(blocks, x_rows.capacity(x)));
  });
}

void fp8_weight_amax(Stream& stream, const Tensor& amax, const Tensor& w) {
  weight_amax_kernel<<<grid_of(w), kThreads, 0, native(stream)>>>(ptr<float>(amax), given_weights(w));
}

void fp8_quantise_swiglu(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& h,
                         const Tensor& s, const RowGroups&, const Fp8RowBlocks& blocks) {
  const int64_t F = h.size(1) / 2;
  assert(h.dtype() == DType::bf16 && packs<__nv_bfloat16>(h.raw(), F));
  const dim3 grid(static_cast<unsigned>(blocks.most), blocks_of(F));
  assert(format_of(rows, columns) == Fp8Format::e4m3);
  quantise_kernel<Fp8Format::e4m3><<<grid, kThreads, 0, native(stream)>>>(
      SwigluNumbers{ptr<__nv_bfloat16>(h), ptr<float>(s), F}, quantised(rows, columns, {h.size(0), F}, blocks));
}

void fp8_quantise_swiglu_backward(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns,
                                  const Fp8SwigluGradient& of, const Tensor& dots, const Fp8RowBlocks& blocks) {
  const int64_t F = of.h.size(1) / 2;
  assert(of.h.dtype() == DType::bf16 && of.dy.dtype() == DType::bf16 && F % kBlock == 0);
  assert(packs<__nv_bfloat16>(of.h.raw(), F) && packs<__nv_bfloat16>(of.dy.raw(), F));
  const Quantised q = quantised(rows, columns, of.h.shape(), blocks);
  const auto row_blocks = static_cast<unsigned>(blocks.most);
  const SwigluGradient gradient{ptr<__nv_bfloat16>(of.dy), ptr<__nv_bfloat16>(of.h), ptr<float>(of.s),
                                ptr<float>(dots)};
  const dim3 grid(row_blocks, blocks_of(F));
  if (format_of(rows, columns) == Fp8Format::e4m3)
    quantise_swiglu_backward_kernel<Fp8Format::e4m3><<<grid, kThreads, 0, native(stream)>>>(gradient, q);
  else
    quantise_swiglu_backward_kernel<Fp8Format::e5m2><<<grid, kThreads, 0, native(stream)>>>(gradient, q);
  if (dots.defined())
    sum_dots_kernel<<<row_blocks, kBlock, 0, native(stream)>>>(ptr<float>(of.ds), ptr<float>(dots),
                                                               static_cast<int>(dots.size(0)), q);
}

void fp8_quantise_weights(Stream& stream, const Fp8Weights& to, const Tensor& w, const Tensor& largest) {
  const QuantisedWeights q{given_weights(w), codes(to.values), codes(to.transposed), ptr<float>(to.scales),
                           ptr<float>(largest)};
  quantise_weights_kernel<<<grid_of(w), kThreads, 0, native(stream)>>>(q);
}

}  // namespace witan::kernels::cuda
