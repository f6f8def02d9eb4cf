#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kSide = 16;  // threads, in a square of 16 x 16
constexpr int kTile = 64, kDepth = 16;     // M and N of a tile, and K of a slice
constexpr int kEach = kTile / kSide;       // rows and columns per thread, kSide apart

// An operand whose K (k_major) or M (or N) is adjacent in memory; the other stride is `stride`. An index, if given,
// names the rows.
template <class S>
struct Operand {
  const S* data;
  int64_t stride, expert_stride;
  bool k_major;
  const int64_t* index = nullptr;
  int64_t divisor = 1;

  __device__ __forceinline__ const S* row(int64_t i) const { return data + (index ? index[i] / divisor : i) * stride; }
};

// to[k][i] = element (first_m + i, first_k + k) of the operand, whose rows begin at `first`; zeros beyond the bounds.
// Neighbouring threads read neighbouring elements.
template <class S, class A>
__device__ __forceinline__ void fill(A (&to)[kDepth][kTile + 1], const Operand<S>& from, int64_t first, int first_m,
                                     int M, int first_k, int K) {
#pragma unroll
  for (int at = static_cast<int>(threadIdx.x); at < kDepth * kTile; at += kThreads) {
    const int i = from.k_major ? at / kDepth : at % kTile, k = from.k_major ? at % kDepth : at / kTile;
    const int64_t slow = from.k_major ? first_m + i : first_k + k, fast = from.k_major ? first_k + k : first_m + i;
    const bool inside = first_m + i < M && first_k + k < K;
    to[k][i] = inside ? convert<A>(from.row(first + slow)[fast]) : A(0);
  }
}

// c [M, N] (=|+=) a b^T for each expert, as in GroupedProduct.
template <Grouped kGrouped, class S, class C>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(C* c, int64_t c_stride, int64_t c_expert_stride, bool accumulate, Operand<S> a, Operand<S> of_all,
                 GroupedProduct product) {
  using A = Acc<S>;
  constexpr bool kSum = kGrouped == Grouped::sum;
  __shared__ A left[kDepth][kTile + 1], right[kDepth][kTile + 1];
  extern __shared__ Group groups[];
  const Tiles<kGrouped, kTile, kTile> tiles(product, groups);
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
  for (int number = static_cast<int>(blockIdx.x); number < tiles.cluster_tiles();
       number += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(number);
    // The group's rows in the pool run over M or, if K is grouped, over K.
    Operand<S> b = of_all;
    b.data += kSum ? 0 : tile.expert * b.expert_stride;
    const int first_m = kSum ? tile.m : 0, M = kSum ? product.M : tile.rows;
    const int K = kSum ? tile.rows : product.K;
    A sums[kEach][kEach] = {};
    for (int first_k = 0; first_k < K; first_k += kDepth) {
      fill(left, a, tile.row, first_m, M, first_k, K);
      fill(right, b, kSum ? tile.row : 0, tile.n, product.N, first_k, K);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k)
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int j = 0; j < kEach; ++j) sums[i][j] += left[k][y + i * kSide] * right[k][x + j * kSide];
      __syncthreads();
    }
    if (kSum && accumulate && K == 0) continue;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int m = first_m + y + i * kSide, n = tile.n + x + j * kSide;
        if (m >= M || n >= product.N) continue;
        C& out = c[tile.expert * c_expert_stride + static_cast<int64_t>(kSum ? m : tile.row + m) * c_stride + n];
        out = convert<C>(accumulate ? convert<A>(out) + sums[i][j] : sums[i][j]);
      }
  }
}

template <Grouped kGrouped, class S, class C>
void launch(Stream& stream, const Tensor& c, bool accumulate, const Operand<S>& a, const Operand<S>& b,
            const GroupedProduct& product) {
  const int dims = c.shape().dims();
  const int shared = Tiles<kGrouped, kTile, kTile>::shared_bytes(product.experts);
  assert(shared <= 24 << 10);  // with the operands within the default limit: 2,000 experts
  const int64_t most = (c.elements() / product.N / kTile + product.experts) * divide_up(product.N, kTile);
  plain_kernel<kGrouped, S, C><<<blocks_for(stream, most, 4), kThreads, static_cast<size_t>(shared), native(stream)>>>(
      ptr<C>(c), c.stride(dims - 2), dims == 3 ? c.stride(0) : 0, accumulate, a, b, product);
}

template <class S>
Operand<S> pool_rows(const Tensor& data, const RowIndex& at, bool k_major) {
  return {ptr<S>(data), data.stride(0), 0, k_major, ptr<const int64_t>(at.index), at.divisor};
}

}  // namespace

void plain_grouped_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowGroups& groups, const Tensor& w,
                        bool transposed, const RowIndex& from_rows) {
  if (to.elements() == 0) return;
  dispatch_device(to.dtype(), [&]<class T>() {
    launch<Grouped::m, T, T>(stream, to, false, pool_rows<T>(from, from_rows, true),
                             Operand<T>{ptr<T>(w), w.stride(1), w.stride(0), !transposed},
                             product_of(groups, to.size(0), to.size(1), from.size(1)));
  });
}

void plain_grouped_sum(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                       const RowGroups& groups, const SumRows& rows) {
  if (dw.elements() == 0) return;
  const auto with = [&]<class S, class C>() {
    launch<Grouped::sum, S, C>(stream, dw, write == Write::accumulate, pool_rows<S>(dy, rows.dy, false),
                               pool_rows<S>(x, rows.x, false),
                               product_of(groups, dw.size(1), dw.size(2), rows.x.capacity(x)));
  };
  if (x.dtype() == DType::bf16 && dw.dtype() == DType::f32) return with.template operator()<__nv_bfloat16, float>();
  if (x.dtype() == DType::f16 && dw.dtype() == DType::f32) return with.template operator()<__half, float>();
  assert(x.dtype() == dw.dtype());
  dispatch_device(x.dtype(), [&]<class T>() { with.template operator()<T, T>(); });
}

}  // namespace witan::kernels::cuda
