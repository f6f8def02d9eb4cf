// Each row is processed by a warp. Each sum over a group's rows is formed by a block, whose warps take the rows in turn
// and add up their sums in order.
#include "witan/kernels/common/cuda/row_groups.cuh"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The columns of y that have a bias.
struct BiasColumns {
  int64_t N, first, M;
};

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(T* y, const T* bias, const Acc<T>* s, DeviceRowGroups groups, int64_t rows, BiasColumns columns) {
  using A = Acc<T>;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= rows) return;
  const int expert = groups.of(t);
  if (expert < 0) return;
  const A weight = s ? s[t] : A(1);
  T* const out = y + t * columns.N + columns.first;
  const T* const add = bias + expert * columns.M;
  for (int64_t j = static_cast<int64_t>(threadIdx.x % 32) * N; j < columns.M; j += 32 * N) {
    Pack<T, N> value = load_pack<T, N>(out + j);
    const Pack<T, N> more = load_pack<T, N>(add + j);
#pragma unroll
    for (int i = 0; i < N; ++i) value.at[i] = convert<T>(convert<A>(value.at[i]) + weight * convert<A>(more.at[i]));
    store_pack<T, N>(out + j, value);
  }
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    scale_gradient_kernel(Acc<T>* ds, const T* dy, const T* bias, DeviceRowGroups groups, int64_t rows,
                          BiasColumns columns) {
  using A = Acc<T>;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= rows) return;
  const int expert = groups.of(t);
  if (expert < 0) return;
  const T *in = dy + t * columns.N + columns.first, *added = bias + expert * columns.M;
  A dot = 0;
  for (int64_t j = static_cast<int64_t>(threadIdx.x % 32) * N; j < columns.M; j += 32 * N) {
    const Pack<T, N> g = load_pack<T, N>(in + j), b = load_pack<T, N>(added + j);
#pragma unroll
    for (int i = 0; i < N; ++i) dot += convert<A>(g.at[i]) * convert<A>(b.at[i]);
  }
  dot = warp_sum(dot);
  if (threadIdx.x % 32 == 0) ds[t] = dot;
}

// One block per 32 packs of an expert's columns.
template <int N, class T, class G>
__global__ void __launch_bounds__(kThreads)
    bias_gradient_kernel(G* dbias, bool accumulate, const T* dy, const Acc<T>* s, DeviceRowGroups groups,
                         BiasColumns columns) {
  using A = Acc<T>;
  constexpr int kRows = 4;  // loaded at a time
  __shared__ A shared[kWarps][32 * N];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t expert = blockIdx.y, panel = static_cast<int64_t>(blockIdx.x) * 32 * N, j = panel + lane * N;
  const int64_t begin = groups.begin[expert], end = begin + groups.count[expert];
  A sums[N] = {};
  if (j < columns.M) {
    for (int64_t from = begin + warp; from < end; from += kWarps * kRows) {
      Pack<T, N> g[kRows];
      A weight[kRows];
#pragma unroll
      for (int k = 0; k < kRows; ++k) {  // no branches, so that all loads are issued at once
        const int64_t t = min(from + k * kWarps, end - 1);
        g[k] = load_pack<T, N>(dy + t * columns.N + columns.first + j);
        weight[k] = s ? s[t] : A(1);
      }
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        if (from + k * kWarps >= end) break;
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += weight[k] * convert<A>(g[k].at[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) shared[warp][lane * N + i] = sums[i];
  __syncthreads();
  for (int column = threadIdx.x; column < 32 * N && panel + column < columns.M; column += kThreads) {
    A sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += shared[i][column];
    G* const to = dbias + expert * columns.M + panel + column;
    *to = convert<G>(accumulate ? convert<A>(*to) + sum : sum);
  }
}

// Calls body.template operator()<T, N>() with the widest packs that these rows allow.
template <class Body>
void with_packs(const Tensor& y, const Tensor& bias, int64_t first, const Body& body) {
  dispatch_device(y.dtype(), [&]<class T>() {
    const bool wide = packs<T>(ptr<T>(y) + first, y.size(1)) && packs<T>(ptr<T>(bias), bias.size(1));
    if (wide)
      body.template operator()<T, kPack<T>>();
    else
      body.template operator()<T, 1>();
  });
}

unsigned blocks_of(int64_t rows) {
  return static_cast<unsigned>((rows + kWarps - 1) / kWarps);
}

}  // namespace

void grouped_bias_forward(Stream& stream, const Tensor& y, const RowGroups& groups, const Tensor& bias, const Tensor& s,
                          int64_t first) {
  if (y.size(0) == 0) return;
  with_packs(y, bias, first, [&]<class T, int N>() {
    add_bias_kernel<N><<<blocks_of(y.size(0)), kThreads, 0, native(stream)>>>(
        ptr<T>(y), ptr<const T>(bias), ptr<const Acc<T>>(s), DeviceRowGroups(groups), y.size(0),
        BiasColumns{y.size(1), first, bias.size(1)});
  });
}

void grouped_bias_backward(Stream& stream, const Tensor& dbias, Write write, const Tensor& dy, const RowGroups& groups,
                           const Tensor& s, int64_t first) {
  if (dbias.elements() == 0) return;
  const int64_t M = dbias.size(1);
  dispatch_with_gradient(dy.dtype(), dbias.dtype(), [&]<class T, class G>() {
    const auto launch = [&]<int N>() {
      const dim3 grid(static_cast<unsigned>((M + 32 * N - 1) / (32 * N)), static_cast<unsigned>(groups.experts()));
      bias_gradient_kernel<N><<<grid, kThreads, 0, native(stream)>>>(
          ptr<G>(dbias), write == Write::accumulate, ptr<const T>(dy), ptr<const Acc<T>>(s), DeviceRowGroups(groups),
          BiasColumns{dy.size(1), first, M});
    };
    if (packs<T>(ptr<T>(dy) + first, dy.size(1)) && M % kPack<T> == 0)
      launch.template operator()<kPack<T>>();
    else
      launch.template operator()<1>();
  });
}

void grouped_bias_backward_scale(Stream& stream, const Tensor& ds, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& bias, int64_t first) {
  if (dy.size(0) == 0) return;
  with_packs(dy, bias, first, [&]<class T, int N>() {
    scale_gradient_kernel<N><<<blocks_of(dy.size(0)), kThreads, 0, native(stream)>>>(
        ptr<Acc<T>>(ds), ptr<const T>(dy), ptr<const T>(bias), DeviceRowGroups(groups), dy.size(0),
        BiasColumns{dy.size(1), first, bias.size(1)});
  });
}

}  // namespace witan::kernels::cuda
