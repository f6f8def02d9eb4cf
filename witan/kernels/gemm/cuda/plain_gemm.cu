#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/copy.cuh"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kSide = 16;  // threads, in a square of 16 x 16
constexpr int kTile = 64, kDepth = 16;     // M and N of a tile, and K of a slice
constexpr int kEach = kTile / kSide;       // rows and columns of c per thread, kSide apart

// An operand of M (or N) by K, one of which is adjacent in memory.
template <class S>
struct Operand {
  const S* data;
  int64_t stride;
  int64_t M, K;
  bool k_major;  // otherwise M (or N) is adjacent
};

// to[k][i] = element (first_m + i, first_k + k); zeros beyond the operand. Neighbouring threads read neighbouring
// elements.
template <class S, class A>
__device__ __forceinline__ void fill(A (&to)[kDepth][kTile + 1], const Operand<S>& from, int64_t first_m,
                                     int64_t first_k) {
#pragma unroll
  for (int at = threadIdx.x; at < kDepth * kTile; at += kThreads) {
    const int i = from.k_major ? at / kDepth : at % kTile, k = from.k_major ? at % kDepth : at / kTile;
    const bool inside = first_m + i < from.M && first_k + k < from.K;
    const int64_t place =
        from.k_major ? (first_m + i) * from.stride + first_k + k : (first_k + k) * from.stride + first_m + i;
    to[k][i] = inside ? convert<A>(from.data[place]) : A(0);
  }
}

// One block per tile of c, tiles counted along its rows.
template <class S, class C>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(C* c, int64_t c_stride, bool accumulate, Operand<S> a, Operand<S> b) {
  using A = Acc<S>;
  __shared__ A left[kDepth][kTile + 1], right[kDepth][kTile + 1];
  const int64_t across = (b.M + kTile - 1) / kTile;
  const int64_t row = blockIdx.x / across * kTile, column = blockIdx.x % across * kTile;
  const int y = threadIdx.x / kSide, x = threadIdx.x % kSide;
  A sums[kEach][kEach] = {};
  for (int64_t k = 0; k < a.K; k += kDepth) {
    fill(left, a, row, k);
    fill(right, b, column, k);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j] += left[k][y + i * kSide] * right[k][x + j * kSide];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t m = row + y + i * kSide, n = column + x + j * kSide;
      if (m >= a.M || n >= b.M) continue;
      C& out = c[m * c_stride + n];
      out = convert<C>(accumulate ? convert<A>(out) + sums[i][j] : sums[i][j]);
    }
}

template <class S, class C>
void launch(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
            Transpose transpose_b) {
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  const int64_t M = c.size(0), N = c.size(1), K = a.size(ta ? 0 : 1);
  const int64_t tiles = (M + kTile - 1) / kTile * ((N + kTile - 1) / kTile);
  assert(tiles <= INT32_MAX);
  plain_kernel<S, C><<<static_cast<unsigned>(tiles), kThreads, 0, native(stream)>>>(
      ptr<C>(c), c.stride(0), write == Write::accumulate, Operand<S>{ptr<S>(a), a.stride(0), M, K, !ta},
      Operand<S>{ptr<S>(b), b.stride(0), N, K, tb});
}

}  // namespace

void plain_gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
                Transpose transpose_b) {
  if (c.elements() == 0) return;
  if (a.dtype() == DType::bf16 && c.dtype() == DType::f32)
    return launch<__nv_bfloat16, float>(stream, c, write, a, transpose_a, b, transpose_b);
  if (a.dtype() == DType::f16 && c.dtype() == DType::f32)
    return launch<__half, float>(stream, c, write, a, transpose_a, b, transpose_b);
  assert(a.dtype() == c.dtype());
  dispatch_device(a.dtype(), [&]<class T>() { launch<T, T>(stream, c, write, a, transpose_a, b, transpose_b); });
}

namespace {

template <class Index>
struct Repeated {
  Index row;
  __device__ int64_t operator()(Index i) const { return i % row; }
};

}  // namespace

void repeat_row(Stream& stream, const Tensor& y, const Tensor& row) {
  copy_rows(stream, y, row, row.bytes(),
            [&]<class Index>(int64_t units) { return Repeated<Index>{static_cast<Index>(units)}; });
}

}  // namespace witan::kernels::cuda
