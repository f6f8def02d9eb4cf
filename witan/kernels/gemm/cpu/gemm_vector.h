// The machine's widest vectors, through the compiler's vector extensions: the same source serves AVX-512, AVX and other
// targets.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "witan/base/numbers/half.h"

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
requires std::is_arithmetic_v<T>  // 16-bit types are only stored
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class T>
inline void store(T* to, const Vector<T>& from) {
  std::memcpy(to, &from, sizeof from);
}

// Loads kLanes<T> elements, converted to T, from unaligned memory.
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

inline void load(Vector<float>& to, const f16* from) {
  float lanes[kLanes<float>];
#pragma omp simd
  for (int i = 0; i < kLanes<float>; ++i) lanes[i] = from[i];
  std::memcpy(&to, lanes, sizeof to);
}

// Vectors consist of granules of 16 bytes; moves within a granule are the cheapest.
template <class T>
inline constexpr int kGranule = 16 / static_cast<int>(sizeof(T));

// Interleaves the lanes of the low (or high) halves of each granule of a and b.
template <class T, bool kHigh, int... I>
inline Vector<T> interleaved(const Vector<T>& a, const Vector<T>& b, std::integer_sequence<int, I...>) {
  constexpr int L = kLanes<T>, G = kGranule<T>;
  return __builtin_shufflevector(a, b, (I / G * G + I % G / 2 + (kHigh ? G / 2 : 0) + (I % 2 ? L : 0))...);
}

// The even (or odd) granules of a, then those of b.
template <class T, bool kOdd, int... I>
inline Vector<T> every_other(const Vector<T>& a, const Vector<T>& b, std::integer_sequence<int, I...>) {
  constexpr int G = kGranule<T>;
  return __builtin_shufflevector(a, b, ((I / G * 2 + (kOdd ? 1 : 0)) * G + I % G)...);
}

// Transposes rows[kLanes][kLanes]: first G x G blocks within granules of G elements, then the granules.
template <class T>
inline void transpose(Vector<T>* rows) {
  constexpr int L = kLanes<T>, G = kGranule<T>, Q = L / G;
  constexpr auto lanes = std::make_integer_sequence<int, L>();
  Vector<T> next[L];
  for (int round = 1; round < G; round *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < L / 2; ++i) {
      const int first = i / (G / 2) * G, j = i % (G / 2);
      const Vector<T>&a = rows[first + j], &b = rows[first + j + G / 2];
      next[first + 2 * j] = interleaved<T, false>(a, b, lanes);
      next[first + 2 * j + 1] = interleaved<T, true>(a, b, lanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) rows[i] = next[i];
  }
  for (int round = 1; round < Q; round *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < L / 2; ++i) {
      const int q = i / G, j = i % G;
      const Vector<T>&a = rows[2 * q * G + j], &b = rows[(2 * q + 1) * G + j];
      next[q * G + j] = every_other<T, false>(a, b, lanes);
      next[(q + Q / 2) * G + j] = every_other<T, true>(a, b, lanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) rows[i] = next[i];
  }
}

}  // namespace witan::kernels::cpu
