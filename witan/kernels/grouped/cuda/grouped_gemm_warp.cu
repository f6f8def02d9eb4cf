#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_tiles.cuh"
#include "witan/kernels/grouped/cuda/warp_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

using namespace warp_tiles;

constexpr int kMostExperts = 1024;  // as many as their table after the tiles holds

// The operand from this row of the pool on.
template <class T>
__device__ __forceinline__ Operand<T> from_row(Operand<T> pool, int row) {
  pool.first = row;
  return pool;
}

// to[i,:] = op(w[e]) from[i,:].
template <bool kTransposed, class T>
__global__ void __launch_bounds__(kThreads, 2)
    rows_kernel(Result<T> to, Operand<T> from, Operand<T> w, int64_t expert_stride, GroupedProduct product) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Tiles<Grouped::m, kTile, kTile> tiles(product, reinterpret_cast<Group*>(shared + kTileBytes));
  for (int number = static_cast<int>(blockIdx.x); number < tiles.cluster_tiles();
       number += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(number);
    Operand<T> rows = from_row(from, tile.row), columns = w;
    rows.M = tile.rows;
    columns.data += tile.expert * expert_stride;
    const Sums sums = sum_tiles<T, true, !kTransposed>(shared, divide_up(product.K, kDepth), warp_m(), warp_n(),
                                                       [&](T* a, T* b, int number) {
                                                         load_tile<true>(a, rows, 0, number * kDepth);
                                                         load_tile<!kTransposed>(b, columns, tile.n, number * kDepth);
                                                       });
    Result<T> out = to;
    out.data += tile.row * to.stride;
    out.M = tile.rows;
    store(out, sums, warp_m(), tile.n + warp_n());
  }
}

// dw[e] (=|+=) the sum over the group's rows.
template <class C, class T>
__global__ void __launch_bounds__(kThreads, 2)
    sum_kernel(Result<C> dw, int64_t expert_stride, Operand<T> dy, Operand<T> x, GroupedProduct product) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Tiles<Grouped::sum, kTile, kTile> tiles(product, reinterpret_cast<Group*>(shared + kTileBytes));
  for (int number = static_cast<int>(blockIdx.x); number < tiles.cluster_tiles();
       number += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(number);
    if (dw.accumulate && tile.rows == 0) continue;
    Operand<T> left = from_row(dy, tile.row), columns = from_row(x, tile.row);
    left.K = columns.K = tile.rows;
    const Sums sums = sum_tiles<T, false, false>(shared, divide_up(tile.rows, kDepth), warp_m(), warp_n(),
                                                 [&](T* a, T* b, int number) {
                                                   load_tile<false>(a, left, tile.m, number * kDepth);
                                                   load_tile<false>(b, columns, tile.n, number * kDepth);
                                                 });
    Result<C> out = dw;
    out.data += tile.expert * expert_stride;
    store(out, sums, tile.m + warp_m(), tile.n + warp_n());
  }
}

bool takes_tiles(const RowGroups& groups, const Tensor& out, const Tensor& a, const Tensor& b) {
  return size_of(a.dtype()) == 2 && a.dtype() == b.dtype() && groups.experts() <= kMostExperts && in_pieces(out) &&
         in_pieces(a) && in_pieces(b);
}

// Whether the numbers that the index names fit in 32 bits, in which the kernel reads them.
bool takes_index(const Tensor& rows, const RowIndex& at) {
  return rows.size(0) * at.divisor <= INT32_MAX;
}

template <class T>
Operand<T> pool_rows(const Tensor& data, const RowIndex& at, int64_t M, int64_t K) {
  Operand<T> out = operand<T>(data, M, K);
  out.index = ptr<const int64_t>(at.index);
  out.divisor = static_cast<uint32_t>(at.divisor);
  return out;
}

template <Grouped kGrouped, class Kernel, class... Args>
void launch(Stream& stream, Kernel kernel, int64_t M, const GroupedProduct& product, const Args&... args) {
  const int64_t most = (M / kTile + product.experts) * tiles_of(product.N);
  launch_tiles(stream, kernel, blocks_for(stream, most, 2),
               Tiles<kGrouped, kTile, kTile>::shared_bytes(product.experts), args..., product);
}

}  // namespace

bool warp_grouped_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowGroups& groups, const Tensor& w,
                       bool transposed, const RowIndex& from_rows) {
  if (!takes_tiles(groups, to, from, w) || to.dtype() != from.dtype() || !takes_index(from, from_rows)) return false;
  if (to.elements() == 0) return true;
  const int64_t N = to.size(1), K = from.size(1);
  dispatch_half(to.dtype(), [&]<class T>() {
    launch<Grouped::m>(stream, transposed ? rows_kernel<true, T> : rows_kernel<false, T>, to.size(0),
                       product_of(groups, to.size(0), N, K), result<T>(to, false), pool_rows<T>(from, from_rows, 0, K),
                       operand<T>(w, N, K), w.stride(0));
  });
  return true;
}

bool warp_grouped_sum(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                      const RowGroups& groups, const SumRows& rows) {
  if (!takes_tiles(groups, dw, dy, x) || !takes_index(dy, rows.dy) || !takes_index(x, rows.x)) return false;
  if (dw.elements() == 0) return true;
  const int64_t M = dw.size(1), N = dw.size(2);
  const auto with = [&]<class C, class T>() {
    launch<Grouped::sum>(stream, sum_kernel<C, T>, groups.experts() * M, product_of(groups, M, N, rows.x.capacity(x)),
                         result<C>(dw, write == Write::accumulate), dw.stride(0), pool_rows<T>(dy, rows.dy, M, 0),
                         pool_rows<T>(x, rows.x, N, 0));
  };
  dispatch_half(x.dtype(), [&]<class T>() {
    if (dw.dtype() == DType::f32) return with.template operator()<float, T>();
    assert(dw.dtype() == x.dtype());
    with.template operator()<T, T>();
  });
  return true;
}

}  // namespace witan::kernels::cuda
