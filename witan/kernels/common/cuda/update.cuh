// Shared by elementwise updates, which read and write whole cache lines of every operand once, whatever its dtype.
#pragma once

#include <type_traits>

#include "witan/base/numbers/half.h"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

// Elements that a thread processes at once: 16 bytes of the accumulator dtype, fewer bytes of narrower operands.
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

// Loads N elements that are used once, so that caches need not keep them.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> stream_in(const T* from) {
  using Word = typename Words<N * sizeof(T)>::type;
  constexpr int kWords = static_cast<int>(N * sizeof(T) / sizeof(Word));
  union Bits {
    Word words[kWords];
    Pack<T, N> pack;
    __device__ Bits() {}
  } bits;
#pragma unroll
  for (int i = 0; i < kWords; ++i) bits.words[i] = __ldcs(reinterpret_cast<const Word*>(from) + i);
  return bits.pack;
}
template <int N, class T>
__device__ __forceinline__ void stream_out(T* to, const Pack<T, N>& from) {
  using Word = typename Words<N * sizeof(T)>::type;
  constexpr int kWords = static_cast<int>(N * sizeof(T) / sizeof(Word));
  union Bits {
    Word words[kWords];
    Pack<T, N> pack;
    __device__ Bits() {}
  } bits;
  bits.pack = from;
#pragma unroll
  for (int i = 0; i < kWords; ++i) __stcs(reinterpret_cast<Word*>(to) + i, bits.words[i]);
}

// How an update accesses its operands: once each in global memory, or in the block's shared memory.
struct Streamed {
  template <int N, class T>
  static __device__ __forceinline__ Pack<T, N> in(const T* from) {
    return stream_in<N>(from);
  }
  template <int N, class T>
  static __device__ __forceinline__ void out(T* to, const Pack<T, N>& from) {
    stream_out<N>(to, from);
  }
};
struct Local {
  template <int N, class T>
  static __device__ __forceinline__ Pack<T, N> in(const T* from) {
    return load_pack<T, N>(from);
  }
  template <int N, class T>
  static __device__ __forceinline__ void out(T* to, const Pack<T, N>& from) {
    store_pack<T, N>(to, from);
  }
};

// Loads the elements and converts them to A.
template <class Access = Streamed, class A, int N, class T>
__device__ __forceinline__ void take(A (&to)[N], const T* from) {
  const Pack<T, N> pack = Access::template in<N>(from);
#pragma unroll
  for (int n = 0; n < N; ++n) to[n] = convert<A>(pack.at[n]);
}
template <class Access = Streamed, class A, int N, class T>
__device__ __forceinline__ void put(T* to, const A (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int n = 0; n < N; ++n) pack.at[n] = convert<T>(from[n]);
  Access::template out<N>(to, pack);
}

// Whether this address is aligned for accesses of a whole unit of A.
template <class A, class T>
__device__ __forceinline__ bool unit_aligned(const T* address) {
  constexpr auto kBytes = sizeof(T) * kUnit<A>;
  return reinterpret_cast<uintptr_t>(address) % (kBytes < 16 ? kBytes : 16) == 0;
}

// Calls body.template operator()<G>() with the device type of parameters' gradients. Float16 is not among them: its
// range is too small for sums.
template <class Body>
void dispatch_gradient(DType dtype, const Body& body) {
  if (dtype == DType::bf16) return body.template operator()<__nv_bfloat16>();
  dispatch_accumulator(dtype, body);
}
// Calls body.template operator()<T, G>() with the types of values and gradients; those of float16 are float.
template <class Body>
void dispatch_update(DType value, DType gradient, const Body& body) {
  dispatch_device(value, [&]<class T>() {
    if constexpr (std::is_same_v<T, __half>) {
      assert(gradient == DType::f32);
      body.template operator()<T, float>();
    } else {
      dispatch_gradient(gradient, [&]<class G>() { body.template operator()<T, G>(); });
    }
  });
}

// The element type of remainders (base/numbers/half.h): lower halves beside bfloat16, float32 beside float16.
template <class T>
using Remainder = std::conditional_t<std::is_same_v<T, __half>, float, uint16_t>;

// The values that an update changes: as wide as their accumulators, or float32 split into value and remainder.
template <class T>
struct Weights {
  using A = Acc<T>;
  static constexpr bool kSplit = !std::is_same_v<T, A>;
  T* value;
  Remainder<T>* remainder;  // null if nothing is split

  __device__ __forceinline__ bool aligned() const {
    return unit_aligned<A>(value) && (!kSplit || unit_aligned<A>(remainder));
  }

  template <class Access = Streamed, int N>
  __device__ __forceinline__ void load(A (&to)[N], int64_t i) const {
    if constexpr (std::is_same_v<T, __half>) {
      A rest[N];
      take<Access>(to, value + i);
      take<Access>(rest, remainder + i);
#pragma unroll
      for (int n = 0; n < N; ++n) to[n] += rest[n];
    } else if constexpr (kSplit) {
      const auto upper = Access::template in<N>(reinterpret_cast<const uint16_t*>(value) + i);
      const auto lower = Access::template in<N>(remainder + i);
#pragma unroll
      for (int n = 0; n < N; ++n) to[n] = join({upper.at[n], lower.at[n]});
    } else {
      take<Access>(to, value + i);
    }
  }
  template <class Access = Streamed, int N>
  __device__ __forceinline__ void store(const A (&from)[N], int64_t i) const {
    if constexpr (std::is_same_v<T, __half>) {
      Pack<T, N> narrow;
      A rest[N];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        narrow.at[n] = convert<T>(from[n]);
        const bool finite = (__half_as_ushort(narrow.at[n]) & 0x7C00u) != 0x7C00u;
        rest[n] = finite ? from[n] - convert<A>(narrow.at[n]) : A(0);
      }
      Access::template out<N>(value + i, narrow);
      put<Access>(remainder + i, rest);
    } else if constexpr (kSplit) {
      Pack<uint16_t, N> upper, lower;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const SplitFloat halves = split(from[n]);
        upper.at[n] = halves.upper;
        lower.at[n] = halves.lower;
      }
      Access::template out<N>(reinterpret_cast<uint16_t*>(value) + i, upper);
      Access::template out<N>(remainder + i, lower);
    } else {
      put<Access>(value + i, from);
    }
  }
};

}  // namespace witan::kernels::cuda
