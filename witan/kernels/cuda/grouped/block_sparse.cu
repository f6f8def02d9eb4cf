// Products with a block-sparse matrix on the tensor cores of sm_80 and later: a block of threads has a tile of 128 x
// 128, whose place the topology names. Dtypes and sizes that they do not take go to the plain kernels.
#include "witan/kernels/block_sparse.h"
#include "witan/kernels/cuda/common/common.cuh"
#include "witan/kernels/cuda/common/mma.cuh"
#include "witan/kernels/cuda/grouped/grouped_gemm_plain.h"
#include "witan/kernels/cuda/moe/expert_order.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kRows = static_cast<int>(kBlockRows);
constexpr int kTopologyThreads = 1024;

struct BlockRow {
  int expert, begin, rows;
};

// One block: block rows are numbered by a scan over the experts, of which each warp then writes some.
__global__ void __launch_bounds__(kTopologyThreads)
    topology_kernel(BlockRow* blocks, int32_t* first, const int64_t* begin, const int64_t* count, int experts,
                    int most) {
  const auto blocks_of = [&](int e) { return (count[e] + kRows - 1) / kRows; };
  if (threadIdx.x < 32) {
    const int64_t all =
        warp_exclusive_scan(experts, blocks_of, [&](int e, int64_t at) { first[e] = static_cast<int32_t>(at); });
    if (threadIdx.x == 0) first[experts] = static_cast<int32_t>(all);
  }
  __syncthreads();
  for (int e = threadIdx.x / 32; e < experts; e += kTopologyThreads / 32) {
    const int own = static_cast<int>(blocks_of(e));
    for (int i = threadIdx.x % 32; i < own; i += 32)
      blocks[first[e] + i] = {e, static_cast<int>(begin[e]) + i * kRows,
                              min(kRows, static_cast<int>(count[e]) - i * kRows)};
  }
  for (int b = first[experts] + static_cast<int>(threadIdx.x); b < most; b += kTopologyThreads)
    blocks[b] = {-1, -1, -1};
}

constexpr int kThreads = 256;            // 8 warps, 2 by 4 of them
constexpr int kTile = 128, kDepth = 32;  // of the result, and of each step of the sum
constexpr int kWarpLines = 64, kWarpColumns = 32;
constexpr int kAlongSteps = kDepth + 8, kAlongLines = kTile + 8;  // strides in shared memory, free of bank conflicts
constexpr int kTileElements = kTile * kAlongSteps;                // of either form: kDepth * kAlongLines is less
static_assert(kTile == kRows && kDepth * kAlongLines <= kTileElements);

// A matrix of `lines` by `steps`, of which one kind is adjacent and comes in pieces of 8, whole ones.
template <class T>
struct Operand {
  const T* data;
  int64_t stride;
  int lines, steps;
};

// Lines from `line`, steps from `step` on to shared memory, zeros behind the bounds.
template <bool kStepsAdjacent, class T>
__device__ __forceinline__ void load_tile(T* to, const Operand<T>& from, int line, int step) {
  constexpr int kPieces = (kStepsAdjacent ? kDepth : kTile) / 8;
#pragma unroll
  for (int at = static_cast<int>(threadIdx.x); at < kTile * kDepth / 8; at += kThreads) {
    const int slow = at / kPieces, fast = at % kPieces * 8;
    const int l = line + (kStepsAdjacent ? slow : fast), s = step + (kStepsAdjacent ? fast : slow);
    const bool inside = l < from.lines && s < from.steps;
    const int64_t place = kStepsAdjacent ? l * from.stride + s : s * from.stride + l;
    copy_async(to + slow * (kStepsAdjacent ? kAlongSteps : kAlongLines) + fast, from.data + (inside ? place : 0),
               inside);
  }
}

template <bool kStepsAdjacent, class T>
__device__ __forceinline__ FragmentA fragment_a(const T* tile, int line, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 at;
  if constexpr (kStepsAdjacent)
    at = load_matrices(tile + (line + lane % 16) * kAlongSteps + step + lane / 16 * 8);
  else
    at = load_matrices_transposed(tile + (step + lane / 16 * 8 + lane % 8) * kAlongLines + line + lane / 8 % 2 * 8);
  return {{at.x, at.y, at.z, at.w}};
}

// Of 16 columns, 8 each.
template <bool kStepsAdjacent, class T>
__device__ __forceinline__ void fragments_b(FragmentB* out, const T* tile, int line, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 at;
  if constexpr (kStepsAdjacent)
    at = load_matrices(tile + (line + lane / 16 * 8 + lane % 8) * kAlongSteps + step + lane / 8 % 2 * 8);
  else
    at = load_matrices_transposed(tile + (step + lane / 8 % 2 * 8 + lane % 8) * kAlongLines + line + lane / 16 * 8);
  out[0] = {{at.x, at.y}};
  out[1] = {{at.z, at.w}};
}

struct Sums {
  float at[kWarpLines / 16][kWarpColumns / 8][4] = {};
};

template <bool kStepsAdjacentA, bool kStepsAdjacentB, class T>
__device__ __forceinline__ void multiply_tile(Sums& sums, const T* a, const T* b, int line, int column) {
#pragma unroll
  for (int step = 0; step < kDepth; step += 16) {
    FragmentA left[kWarpLines / 16];
    FragmentB right[kWarpColumns / 8];
#pragma unroll
    for (int i = 0; i < kWarpLines / 16; ++i) left[i] = fragment_a<kStepsAdjacentA>(a, line + i * 16, step);
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; j += 2) fragments_b<kStepsAdjacentB>(right + j, b, column + j * 8, step);
#pragma unroll
    for (int i = 0; i < kWarpLines / 16; ++i)
#pragma unroll
      for (int j = 0; j < kWarpColumns / 8; ++j) multiply_add<T>(sums.at[i][j], left[i], right[j]);
  }
}

// Sums of `tiles` steps, each loaded by load(to a, to b, number) while the one before is multiplied.
template <class T, bool kStepsAdjacentA, bool kStepsAdjacentB, class Load>
__device__ __forceinline__ Sums sum_tiles(int tiles, int line, int column, const Load& load) {
  __shared__ __align__(16) T a[2][kTileElements], b[2][kTileElements];
  Sums sums;
  if (tiles > 0) load(a[0], b[0], 0);
  commit_copies();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load(a[(tile + 1) % 2], b[(tile + 1) % 2], tile + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    multiply_tile<kStepsAdjacentA, kStepsAdjacentB>(sums, a[tile % 2], b[tile % 2], line, column);
    __syncthreads();  // before the next copies come in its place
  }
  return sums;
}

template <class C>
struct Result {
  C* data;
  int64_t stride;
  int lines, columns;  // columns in whole pieces of 8
  bool accumulate;
};

template <class C>
__device__ __forceinline__ void store(const Result<C>& to, const Sums& sums, int line, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kWarpLines / 16; ++i)
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int l = line + i * 16 + lane / 4 + half * 8, n = column + j * 8 + lane % 4 * 2;
        if (l >= to.lines || n >= to.columns) continue;
        C* const at = to.data + l * to.stride + n;
        Pack<C, 2> out = {};
        if (to.accumulate) out = load_pack<C, 2>(at);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float sum = sums.at[i][j][2 * half + k];
          out.at[k] = convert<C>(to.accumulate ? convert<float>(out.at[k]) + sum : sum);
        }
        store_pack<C, 2>(at, out);
      }
}

__device__ __forceinline__ int warp_line() {
  return static_cast<int>(threadIdx.x) / 32 / (kTile / kWarpColumns) * kWarpLines;
}
__device__ __forceinline__ int warp_column() {
  return static_cast<int>(threadIdx.x) / 32 % (kTile / kWarpColumns) * kWarpColumns;
}

// A tile of a block row: its 128 rows by 128 columns. `w` is that of expert 0.
template <bool kForward, class T>
__global__ void __launch_bounds__(kThreads, 2) rows_kernel(Result<T> to, Operand<T> from, Operand<T> w,
                                                           int64_t expert_stride, const BlockRow* blocks, int across) {
  const BlockRow block = blocks[blockIdx.x / across];
  if (block.expert < 0) return;
  const int column = static_cast<int>(blockIdx.x % across) * kTile;
  from.data += block.begin * from.stride;
  from.lines = block.rows;
  w.data += block.expert * expert_stride;
  const Sums sums = sum_tiles<T, true, kForward>((from.steps + kDepth - 1) / kDepth, warp_line(), warp_column(),
                                                 [&](T* a, T* b, int number) {
                                                   load_tile<true>(a, from, 0, number * kDepth);
                                                   load_tile<kForward>(b, w, column, number * kDepth);
                                                 });
  to.data += block.begin * to.stride;
  to.lines = block.rows;
  store(to, sums, warp_line(), column + warp_column());
}

// A tile of an expert's dw: the sum over its block rows, one after the other, of which the last may be short.
template <class C, class T>
__global__ void __launch_bounds__(kThreads, 2)
    columns_kernel(Result<C> dw, int64_t expert_stride, Operand<T> dy, Operand<T> x, const BlockRow* blocks,
                   const int32_t* first, int down, int across) {
  const int expert = static_cast<int>(blockIdx.x) / (down * across);
  const int line = static_cast<int>(blockIdx.x) / across % down * kTile;
  const int column = static_cast<int>(blockIdx.x) % across * kTile;
  const int begin = first[expert], behind = first[expert + 1];
  if (begin == behind && dw.accumulate) return;
  constexpr int kOfBlock = kRows / kDepth;
  const int tiles =
      begin == behind ? 0 : (behind - begin - 1) * kOfBlock + (blocks[behind - 1].rows + kDepth - 1) / kDepth;
  const Sums sums = sum_tiles<T, false, false>(tiles, warp_line(), warp_column(), [&](T* a, T* b, int number) {
    const BlockRow block = blocks[begin + number / kOfBlock];
    const int step = number % kOfBlock * kDepth;
    const auto of_block = [&](const Operand<T>& all) {
      return Operand<T>{all.data + block.begin * all.stride, all.stride, all.lines, block.rows};
    };
    load_tile<false>(a, of_block(dy), line, step);
    load_tile<false>(b, of_block(x), column, step);
  });
  dw.data += expert * expert_stride;
  store(dw, sums, line + warp_line(), column + warp_column());
}

// Whether rows are whole pieces of 16 bytes of 16-bit numbers, as the copies want them.
bool in_pieces(const Tensor& tensor) {
  const int dims = tensor.shape().dims();
  bool whole = reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0 && tensor.size(dims - 1) % 8 == 0;
  for (int dim = 0; dim + 1 < dims; ++dim) whole = whole && tensor.stride(dim) % 8 == 0;
  return whole;
}

bool takes_blocks(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b) {
  return size_of(a.dtype()) == 2 && b.dtype() == a.dtype() && in_pieces(out) && in_pieces(a) && in_pieces(b) &&
         witan::cuda::properties(stream.device().index).major >= 8;
}

int tiles_of(int64_t size) {
  return static_cast<int>((size + kTile - 1) / kTile);
}

template <class T>
Operand<T> operand(const Tensor& matrix, int64_t lines, int64_t steps) {
  return {ptr<const T>(matrix), matrix.stride(matrix.shape().dims() - 2), static_cast<int>(lines),
          static_cast<int>(steps)};
}

template <class C>
Result<C> result(const Tensor& matrix, bool accumulate) {
  const int dims = matrix.shape().dims();
  return {ptr<C>(matrix), matrix.stride(dims - 2), static_cast<int>(matrix.size(dims - 2)),
          static_cast<int>(matrix.size(dims - 1)), accumulate};
}

}  // namespace

void block_topology(Stream& stream, const BlockTopology& topology) {
  static_assert(sizeof(BlockRow) == 3 * sizeof(int32_t));
  topology_kernel<<<1, kTopologyThreads, 0, native(stream)>>>(
      ptr<BlockRow>(topology.blocks), ptr<int32_t>(topology.first), ptr<const int64_t>(topology.groups.begin),
      ptr<const int64_t>(topology.groups.count), static_cast<int>(topology.experts()),
      static_cast<int>(topology.blocks.size(0)));
}

void block_rows_product(Stream& stream, const Tensor& to, const Tensor& from, const BlockTopology& topology,
                        const Tensor& w, Transpose transpose_w) {
  const bool forward = transpose_w == Transpose::yes;
  if (!takes_blocks(stream, to, from, w)) return plain_grouped_lines(stream, to, from, topology.groups, w, !forward);
  const int across = tiles_of(to.size(1));
  const int64_t blocks = topology.blocks.size(0) * across;
  if (blocks == 0) return;
  dispatch_half(to.dtype(), [&]<class T>() {
    const auto kernel = forward ? rows_kernel<true, T> : rows_kernel<false, T>;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(
        result<T>(to, false), operand<T>(from, 0, from.size(1)), operand<T>(w, to.size(1), from.size(1)), w.stride(0),
        ptr<const BlockRow>(topology.blocks), across);
  });
}

void block_columns_product(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                           const BlockTopology& topology) {
  if (!takes_blocks(stream, dw, dy, x) || dw.dtype() == DType::f16)
    return plain_grouped_sum(stream, dw, write, dy, x, topology.groups);
  const int down = tiles_of(dw.size(1)), across = tiles_of(dw.size(2));
  const int64_t blocks = topology.experts() * down * across;
  if (blocks == 0) return;
  const auto launch = [&]<class T, class C>() {
    columns_kernel<C, T><<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(
        result<C>(dw, write == Write::accumulate), dw.stride(0), operand<T>(dy, dy.size(1), 0),
        operand<T>(x, x.size(1), 0), ptr<const BlockRow>(topology.blocks), ptr<const int32_t>(topology.first), down,
        across);
  };
  if (dw.dtype() == DType::f32)
    return dispatch_half(x.dtype(), [&]<class T>() { launch.template operator()<T, float>(); });
  assert(x.dtype() == DType::bf16 && dw.dtype() == DType::bf16);
  launch.template operator()<__nv_bfloat16, __nv_bfloat16>();
}

}  // namespace witan::kernels::cuda
