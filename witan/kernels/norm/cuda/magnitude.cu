// Each row is processed by a warp, and each of a vector's elements by a thread.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/norm/magnitude.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kRows = kThreads / 32;

__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
}
unsigned blocks_of(int64_t rows, int64_t of_block) {
  return static_cast<unsigned>((rows + of_block - 1) / of_block);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    low_rank_squares_kernel(Acc<T>* squares, const Acc<T>* base, const Acc<T>* p, const Acc<T>* g, const T* b,
                            Acc<T> scale, int64_t rows, int64_t r) {
  using A = Acc<T>;
  const int64_t n = row_of_warp();
  if (n >= rows) return;
  const T* const own = b + n * r;
  A sum = 0;
  for (int64_t j = threadIdx.x % 32; j < r; j += 32) {
    A inner = 0;
    for (int64_t i = 0; i < r; ++i) inner += convert<A>(own[i]) * g[i * r + j];
    sum += convert<A>(own[j]) * (A(2) * scale * p[n * r + j] + scale * scale * inner);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) squares[n] = max(A(0), base[n] + sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    magnitude_factors_kernel(Acc<T>* factors, Acc<T>* inverses, const T* change, const Acc<T>* base,
                             const Acc<T>* squares, int64_t rows) {
  using A = Acc<T>;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= rows) return;
  const A norm = sqrt(squares[n]);
  factors[n] = norm > 0 ? (sqrt(base[n]) + convert<A>(change[n])) / norm : A(1);
  inverses[n] = norm > 0 ? A(1) / norm : A(0);
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    scale_columns_kernel(T* y, const T* x, const Acc<T>* factors, int64_t rows, int64_t D) {
  using A = Acc<T>;
  const int64_t t = row_of_warp();
  if (t >= rows) return;
  for (int64_t d = static_cast<int64_t>(threadIdx.x % 32) * N; d < D; d += 32 * N) {
    Pack<T, N> in = load_pack<T, N>(x + t * D + d);
#pragma unroll
    for (int j = 0; j < N; ++j) in.at[j] = convert<T>(convert<A>(in.at[j]) * factors[d + j]);
    store_pack<T, N>(y + t * D + d, in);
  }
}

}  // namespace

void low_rank_squares(Stream& stream, const Tensor& squares, const Tensor& base, const Tensor& p, const Tensor& g,
                      const Tensor& b, double scale) {
  const int64_t rows = b.size(0);
  if (rows == 0) return;
  dispatch_device(b.dtype(), [&]<class T>() {
    using A = Acc<T>;
    low_rank_squares_kernel<T><<<blocks_of(rows, kRows), kThreads, 0, native(stream)>>>(
        ptr<A>(squares), ptr<A>(base), ptr<A>(p), ptr<A>(g), ptr<T>(b), static_cast<A>(scale), rows, b.size(1));
  });
}

void magnitude_factors(Stream& stream, const Tensor& factors, const Tensor& inverses, const Tensor& change,
                       const Tensor& base, const Tensor& squares) {
  const int64_t rows = change.elements();
  if (rows == 0) return;
  dispatch_device(change.dtype(), [&]<class T>() {
    using A = Acc<T>;
    magnitude_factors_kernel<T><<<blocks_of(rows, kThreads), kThreads, 0, native(stream)>>>(
        ptr<A>(factors), ptr<A>(inverses), ptr<T>(change), ptr<A>(base), ptr<A>(squares), rows);
  });
}

void scale_columns(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& factors) {
  const auto [rows, D] = x.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(x.dtype(), [&, rows = rows, D = D]<class T>() {
    const auto launch = [&]<int N>() {
      scale_columns_kernel<N, T><<<blocks_of(rows, kRows), kThreads, 0, native(stream)>>>(
          ptr<T>(y), ptr<T>(x), ptr<Acc<T>>(factors), rows, D);
    };
    if (packs<T>(ptr<T>(x), D) && packs<T>(ptr<T>(y), D))
      launch.template operator()<kPack<T>>();
    else
      launch.template operator()<1>();
  });
}

}  // namespace witan::kernels::cuda
