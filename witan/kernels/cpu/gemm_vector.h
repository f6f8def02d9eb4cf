// The machine's widest vectors, through the compiler's vector extensions: one source for AVX-512, AVX and everything
// else.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "witan/base/half.h"

namespace witan::kernels::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class T>
inline void store(T* to, const Vector<T>& from) {
  std::memcpy(to, &from, sizeof from);
}

// kLanes<T> elements as T, from unaligned memory.
template <class T>
inline void load(Vector<T>& to, const T* from) {
  std::memcpy(&to, from, sizeof to);
}
inline void load(Vector<float>& to, const bf16* from) {
  typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  to = reinterpret_cast<Vector<float>>(__builtin_convertvector(halves, Vector<uint32_t>) << 16);
}

// (a, b) <- a and b with the lanes whose bit kDistance differs from their vector's exchanged.
template <int kDistance, class V, int... I>
inline void exchange(V& a, V& b, std::integer_sequence<int, I...>) {
  constexpr int kCount = sizeof...(I);
  const V low = __builtin_shufflevector(a, b, ((I & kDistance) ? kCount + I - kDistance : I)...);
  b = __builtin_shufflevector(a, b, ((I & kDistance) ? kCount + I : I + kDistance)...);
  a = low;
}

// Transposes rows[kLanes][kLanes] in log2(kLanes) rounds of exchanges.
template <class T, int kDistance = kLanes<T> / 2>
inline void transpose(Vector<T>* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i)
    if (!(i & kDistance))
      exchange<kDistance>(rows[i], rows[i + kDistance], std::make_integer_sequence<int, kLanes<T>>());
  if constexpr (kDistance > 1) transpose<T, kDistance / 2>(rows);
}

}  // namespace witan::kernels::cpu
