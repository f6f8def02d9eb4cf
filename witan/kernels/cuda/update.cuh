// What elementwise updates share: full lines of every operand, whatever its width, read and written once.
#pragma once

#include "witan/kernels/cuda/common.cuh"

namespace witan::kernels::cuda {

// Elements that a thread takes at once: 16 bytes of the accumulator dtype, fewer of narrower operands.
template <class A>
inline constexpr int kUnit = 16 / static_cast<int>(sizeof(A));

template <int kBytes>
struct Words;
template <>
struct Words<2> {
  using type = unsigned short;
};
template <>
struct Words<4> {
  using type = unsigned;
};
template <>
struct Words<8> {
  using type = uint2;
};
template <>
struct Words<16> {
  using type = uint4;
};
template <>
struct Words<32> {
  using type = uint4;
};

// N elements from `from` in the type A. Each is used once: caches need not keep it.
template <class A, int N, class T>
__device__ __forceinline__ void stream_in(A (&to)[N], const T* from) {
  using Word = typename Words<N * sizeof(T)>::type;
  constexpr int kWords = static_cast<int>(N * sizeof(T) / sizeof(Word));
  union Bits {
    Word words[kWords];
    Pack<T, N> pack;
    __device__ Bits() {}
  } bits;
#pragma unroll
  for (int i = 0; i < kWords; ++i) bits.words[i] = __ldcs(reinterpret_cast<const Word*>(from) + i);
#pragma unroll
  for (int n = 0; n < N; ++n) to[n] = convert<A>(bits.pack.at[n]);
}
template <class A, int N, class T>
__device__ __forceinline__ void stream_out(T* to, const A (&from)[N]) {
  using Word = typename Words<N * sizeof(T)>::type;
  constexpr int kWords = static_cast<int>(N * sizeof(T) / sizeof(Word));
  union Bits {
    Word words[kWords];
    Pack<T, N> pack;
    __device__ Bits() {}
  } bits;
#pragma unroll
  for (int n = 0; n < N; ++n) bits.pack.at[n] = convert<T>(from[n]);
#pragma unroll
  for (int i = 0; i < kWords; ++i) __stcs(reinterpret_cast<Word*>(to) + i, bits.words[i]);
}

// Whether units of A's can be moved as words from every address.
template <class A, class T>
__device__ __forceinline__ bool unit_aligned(const T* address) {
  constexpr auto kBytes = sizeof(T) * kUnit<A>;
  return reinterpret_cast<uintptr_t>(address) % (kBytes < 16 ? kBytes : 16) == 0;
}

}  // namespace witan::kernels::cuda
