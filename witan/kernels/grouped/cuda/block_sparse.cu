// Products with a block-sparse matrix on the tensor cores of sm_80 and later: each thread block computes a 128 x 128
// tile, whose place the topology gives. Dtypes and sizes that these kernels do not support go to the plain ones.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/grouped/block_sparse.h"
#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/warp_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

using namespace warp_tiles;

constexpr int kRows = static_cast<int>(kBlockRows);
constexpr int kTopologyThreads = 1024;

struct BlockRow {
  int expert, begin, rows;
};

// Runs as one block: a scan over the experts numbers the block rows, and then the warps write them, expert by expert.
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

static_assert(kTile == kRows);

// Computes a tile of a block row: its 128 rows by 128 columns. `w` points to expert 0.
template <bool kForward, class T>
__global__ void __launch_bounds__(kThreads, 2) rows_kernel(Result<T> to, Operand<T> from, Operand<T> w,
                                                           int64_t expert_stride, const BlockRow* blocks, int across) {
  extern __shared__ __align__(16) unsigned char shared[];
  const BlockRow block = blocks[blockIdx.x / across];
  if (block.expert < 0) return;
  const int column = static_cast<int>(blockIdx.x % across) * kTile;
  from.data += block.begin * from.stride;
  from.M = block.rows;
  w.data += block.expert * expert_stride;
  const Sums sums = sum_tiles<T, true, kForward>(shared, (from.K + kDepth - 1) / kDepth, warp_m(), warp_n(),
                                                 [&](T* a, T* b, int number) {
                                                   load_tile<true>(a, from, 0, number * kDepth);
                                                   load_tile<kForward>(b, w, column, number * kDepth);
                                                 });
  to.data += block.begin * to.stride;
  to.M = block.rows;
  store(to, sums, warp_m(), column + warp_n());
}

// Computes a tile of an expert's dw: the sum over its block rows in order, the last of which may be shorter.
template <class C, class T>
__global__ void __launch_bounds__(kThreads, 2)
    columns_kernel(Result<C> dw, int64_t expert_stride, Operand<T> dy, Operand<T> x, const BlockRow* blocks,
                   const int32_t* first, int down, int across) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int expert = static_cast<int>(blockIdx.x) / (down * across);
  const int m = static_cast<int>(blockIdx.x) / across % down * kTile;
  const int column = static_cast<int>(blockIdx.x) % across * kTile;
  const int begin = first[expert], behind = first[expert + 1];
  if (begin == behind && dw.accumulate) return;
  constexpr int kOfBlock = kRows / kDepth;
  const int tiles =
      begin == behind ? 0 : (behind - begin - 1) * kOfBlock + (blocks[behind - 1].rows + kDepth - 1) / kDepth;
  const Sums sums = sum_tiles<T, false, false>(shared, tiles, warp_m(), warp_n(), [&](T* a, T* b, int number) {
    const BlockRow block = blocks[begin + number / kOfBlock];
    const int k = number % kOfBlock * kDepth;
    const auto of_block = [&](const Operand<T>& all) {
      return Operand<T>{all.data + block.begin * all.stride, all.stride, all.M, block.rows};
    };
    load_tile<false>(a, of_block(dy), m, k);
    load_tile<false>(b, of_block(x), column, k);
  });
  dw.data += expert * expert_stride;
  store(dw, sums, m + warp_m(), column + warp_n());
}

bool takes_blocks(const Tensor& out, const Tensor& a, const Tensor& b) {
  return size_of(a.dtype()) == 2 && b.dtype() == a.dtype() && in_pieces(out) && in_pieces(a) && in_pieces(b);
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
  if (!takes_blocks(to, from, w)) return plain_grouped_rows(stream, to, from, topology.groups, w, !forward);
  const int across = tiles_of(to.size(1));
  const int64_t blocks = topology.blocks.size(0) * across;
  if (blocks == 0) return;
  dispatch_half(to.dtype(), [&]<class T>() {
    const auto kernel = forward ? rows_kernel<true, T> : rows_kernel<false, T>;
    launch_tiles(stream, kernel, static_cast<unsigned>(blocks), 0, result<T>(to, false),
                 operand<T>(from, 0, from.size(1)), operand<T>(w, to.size(1), from.size(1)), w.stride(0),
                 ptr<const BlockRow>(topology.blocks), across);
  });
}

void block_columns_product(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                           const BlockTopology& topology) {
  if (!takes_blocks(dw, dy, x) || dw.dtype() == DType::f16)
    return plain_grouped_sum(stream, dw, write, dy, x, topology.groups);
  const int down = tiles_of(dw.size(1)), across = tiles_of(dw.size(2));
  const int64_t blocks = topology.experts() * down * across;
  if (blocks == 0) return;
  const auto launch = [&]<class T, class C>() {
    launch_tiles(stream, columns_kernel<C, T>, static_cast<unsigned>(blocks), 0,
                 result<C>(dw, write == Write::accumulate), dw.stride(0), operand<T>(dy, dy.size(1), 0),
                 operand<T>(x, x.size(1), 0), ptr<const BlockRow>(topology.blocks), ptr<const int32_t>(topology.first),
                 down, across);
  };
  if (dw.dtype() == DType::f32)
    return dispatch_half(x.dtype(), [&]<class T>() { launch.template operator()<T, float>(); });
  assert(x.dtype() == DType::bf16 && dw.dtype() == DType::bf16);
  launch.template operator()<__nv_bfloat16, __nv_bfloat16>();
}

}  // namespace witan::kernels::cuda
