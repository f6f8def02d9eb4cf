// Each row is processed by a warp.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kRows = kThreads / 32;

__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
}

// sums[t] = sum of x^2 or, if dy is given, of w dy x
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    sharded_sums_kernel(Acc<T>* sums, const T* dy, const T* x, const T* w, Acc<T> added, int64_t rows, int64_t D) {
  using A = Acc<T>;
  const int64_t t = row_of_warp();
  if (t >= rows) return;
  A sum = 0;
  for (int64_t d = static_cast<int64_t>(threadIdx.x % 32) * N; d < D; d += 32 * N) {
    const Pack<T, N> in = load_pack<T, N>(x + t * D + d);
    if (dy == nullptr) {
#pragma unroll
      for (int j = 0; j < N; ++j) sum += convert<A>(in.at[j]) * convert<A>(in.at[j]);
      continue;
    }
    const Pack<T, N> g = load_pack<T, N>(dy + t * D + d), weight = load_pack<T, N>(w + d);
#pragma unroll
    for (int j = 0; j < N; ++j)
      sum += (convert<A>(weight.at[j]) + added) * (convert<A>(g.at[j]) * convert<A>(in.at[j]));
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[t] = sum;
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    sharded_forward_kernel(T* y, Acc<T>* r, const T* x, const T* w, Acc<T> added, const Acc<T>* sums, int64_t rows,
                           int64_t D, Acc<T> width, Acc<T> eps) {
  using A = Acc<T>;
  const int64_t t = row_of_warp();
  if (t >= rows) return;
  const A scale = A(1) / sqrt(sums[t] / width + eps);
  if (threadIdx.x % 32 == 0) r[t] = scale;
  for (int64_t d = static_cast<int64_t>(threadIdx.x % 32) * N; d < D; d += 32 * N) {
    Pack<T, N> in = load_pack<T, N>(x + t * D + d);
    const Pack<T, N> weight = load_pack<T, N>(w + d);
#pragma unroll
    for (int j = 0; j < N; ++j)
      in.at[j] = convert<T>(convert<A>(in.at[j]) * scale * (convert<A>(weight.at[j]) + added));
    store_pack<T, N>(y + t * D + d, in);
  }
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    sharded_backward_kernel(T* dx, const T* dy, const T* x, const T* w, Acc<T> added, const Acc<T>* r,
                            const Acc<T>* sums, int64_t rows, int64_t D, Acc<T> width) {
  using A = Acc<T>;
  const int64_t t = row_of_warp();
  if (t >= rows) return;
  const A scale = r[t], pull = sums[t] / width * scale * scale;
  for (int64_t d = static_cast<int64_t>(threadIdx.x % 32) * N; d < D; d += 32 * N) {
    Pack<T, N> g = load_pack<T, N>(dy + t * D + d);
    const Pack<T, N> in = load_pack<T, N>(x + t * D + d), weight = load_pack<T, N>(w + d);
#pragma unroll
    for (int j = 0; j < N; ++j)
      g.at[j] =
          convert<T>(scale * ((convert<A>(weight.at[j]) + added) * convert<A>(g.at[j]) - convert<A>(in.at[j]) * pull));
    store_pack<T, N>(dx + t * D + d, g);
  }
}

// Calls launch.template operator()<T, N>(blocks, rows, D) with N elements at a time if all rows are aligned to packs.
template <class Launch>
void by_pack(const Tensor& x, const Tensor& y, const Tensor& dy, const NormWeight& w, const Launch& launch) {
  const auto [rows, D] = x.shape().as_rows();
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kRows - 1) / kRows);
  dispatch_device(x.dtype(), [&, T_ = rows, D = D]<class T>() {
    bool wide = true;
    for (const Tensor& tensor : {x, y, dy, w.values}) wide = wide && (!tensor.defined() || packs<T>(ptr<T>(tensor), D));
    if (wide)
      launch.template operator()<T, kPack<T>>(blocks, T_, D);
    else
      launch.template operator()<T, 1>(blocks, T_, D);
  });
}

}  // namespace

void sharded_rmsnorm_squares(Stream& stream, const Tensor& sums, const Tensor& x) {
  by_pack(x, {}, {}, {}, [&]<class T, int N>(unsigned blocks, int64_t rows, int64_t D) {
    sharded_sums_kernel<N, T>
        <<<blocks, kThreads, 0, native(stream)>>>(ptr<Acc<T>>(sums), nullptr, ptr<T>(x), nullptr, Acc<T>(0), rows, D);
  });
}

void sharded_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const NormWeight& w,
                             const Tensor& sums, int64_t width, double eps) {
  by_pack(x, y, {}, w, [&]<class T, int N>(unsigned blocks, int64_t rows, int64_t D) {
    using A = Acc<T>;
    sharded_forward_kernel<N, T>
        <<<blocks, kThreads, 0, native(stream)>>>(ptr<T>(y), ptr<A>(r), ptr<T>(x), ptr<T>(w.values), w.added<A>(),
                                                  ptr<A>(sums), rows, D, static_cast<A>(width), static_cast<A>(eps));
  });
}

void sharded_rmsnorm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
                              const NormWeight& w) {
  by_pack(x, {}, dy, w, [&]<class T, int N>(unsigned blocks, int64_t rows, int64_t D) {
    sharded_sums_kernel<N, T><<<blocks, kThreads, 0, native(stream)>>>(ptr<Acc<T>>(sums), ptr<T>(dy), ptr<T>(x),
                                                                       ptr<T>(w.values), w.added<Acc<T>>(), rows, D);
  });
}

void sharded_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                    const NormWeight& w, const Tensor& r, const Tensor& sums, int64_t width) {
  by_pack(x, dx, dy, w, [&]<class T, int N>(unsigned blocks, int64_t rows, int64_t D) {
    using A = Acc<T>;
    sharded_backward_kernel<N, T>
        <<<blocks, kThreads, 0, native(stream)>>>(ptr<T>(dx), ptr<T>(dy), ptr<T>(x), ptr<T>(w.values), w.added<A>(),
                                                  ptr<A>(r), ptr<A>(sums), rows, D, static_cast<A>(width));
  });
}

}  // namespace witan::kernels::cuda
