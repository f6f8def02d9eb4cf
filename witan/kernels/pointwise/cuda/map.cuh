// Elementwise kernels over contiguous tensors, in packs of 16 bytes; each thread loads several before it stores the
// first. An output may be an input.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

inline constexpr int kMapThreads = 256;
inline constexpr int kMapPacks = 4;  // per thread

// The number of elements in 16 bytes of the widest type.
template <class... T>
inline constexpr int kCommonPack = 16 / std::max({static_cast<int>(sizeof(T))...});

template <int N>
__device__ __forceinline__ int64_t map_element(int pack) {
  return ((static_cast<int64_t>(blockIdx.x) * kMapPacks + pack) * kMapThreads + threadIdx.x) * N;
}

// This thread's element after the last whole pack: the first threads of the first block take one each.
template <int N>
__device__ __forceinline__ int64_t map_rest(int64_t elements) {
  return blockIdx.x == 0 && threadIdx.x < N ? elements / N * N + threadIdx.x : elements;
}

// y[i] = f(x[i])
template <int N, class Y, class X, class F>
__global__ void __launch_bounds__(kMapThreads) map_kernel(Y* y, const X* x, int64_t elements, F f) {
  Pack<X, N> in[kMapPacks];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t i = map_element<N>(k);
    if (i + N <= elements)
      in[k] = load_pack<X, N>(x + i);
    else
      in[k] = {};
  }
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t i = map_element<N>(k);
    Pack<Y, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = f(in[k].at[j]);
    if (i + N <= elements) store_pack<Y, N>(y + i, out);
  }
  const int64_t i = map_rest<N>(elements);
  if (i < elements) y[i] = f(x[i]);
}

// y[i] = f(a[i], b[i])
template <int N, class Y, class A, class B, class F>
__global__ void __launch_bounds__(kMapThreads) map_kernel(Y* y, const A* a, const B* b, int64_t elements, F f) {
  Pack<A, N> left[kMapPacks];
  Pack<B, N> right[kMapPacks];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t i = map_element<N>(k);
    if (i + N <= elements)
      left[k] = load_pack<A, N>(a + i), right[k] = load_pack<B, N>(b + i);
    else
      left[k] = {}, right[k] = {};
  }
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t i = map_element<N>(k);
    Pack<Y, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = f(left[k].at[j], right[k].at[j]);
    if (i + N <= elements) store_pack<Y, N>(y + i, out);
  }
  const int64_t i = map_rest<N>(elements);
  if (i < elements) y[i] = f(a[i], b[i]);
}

inline unsigned map_blocks(int64_t elements, int N) {
  const int64_t per_block = static_cast<int64_t>(kMapThreads) * kMapPacks * N;
  return static_cast<unsigned>((elements + per_block - 1) / per_block);
}

// y[i] = f(x[i]) for every element of contiguous tensors.
template <class Y, class X, class F>
void map(Stream& stream, const Tensor& y, const Tensor& x, F f) {
  constexpr int N = kCommonPack<Y, X>;
  const int64_t n = y.elements();
  Y* const out = ptr<Y>(y);
  const X* const in = ptr<X>(x);
  if (n == 0) return;
  if (packs<Y>(out, N, N) && packs<X>(in, N, N))
    map_kernel<N><<<map_blocks(n, N), kMapThreads, 0, native(stream)>>>(out, in, n, f);
  else
    map_kernel<1><<<map_blocks(n, 1), kMapThreads, 0, native(stream)>>>(out, in, n, f);
}

// y[i] = f(a[i], b[i])
template <class Y, class A, class B, class F>
void map(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b, F f) {
  constexpr int N = kCommonPack<Y, A, B>;
  const int64_t n = y.elements();
  Y* const out = ptr<Y>(y);
  const A* const left = ptr<A>(a);
  const B* const right = ptr<B>(b);
  if (n == 0) return;
  if (packs<Y>(out, N, N) && packs<A>(left, N, N) && packs<B>(right, N, N))
    map_kernel<N><<<map_blocks(n, N), kMapThreads, 0, native(stream)>>>(out, left, right, n, f);
  else
    map_kernel<1><<<map_blocks(n, 1), kMapThreads, 0, native(stream)>>>(out, left, right, n, f);
}

}  // namespace witan::kernels::cuda
