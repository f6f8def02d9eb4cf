// Reductions over the buffers of several ranks, on the CPU: y_k[i] = x_0[i] + x_1[i] + … in that order, for every k.
// Sums in float32 for bfloat16 and in the type itself otherwise; integers wrap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "witan/comm/group.h"
#include "witan/tensor/dtype.h"

namespace witan::reduce_detail {

template <class T>
struct SumOf {
  using type = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
};
template <>
struct SumOf<int32_t> {
  using type = uint32_t;
};
template <>
struct SumOf<int64_t> {
  using type = uint64_t;
};

struct Add {
  template <class T>
  using Wide = typename SumOf<T>::type;
  template <class A>
  static A combine(A a, A b) {
    return a + b;
  }
};
struct Largest {
  template <class T>
  using Wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  template <class A>
  static A combine(A a, A b) {
    return a > b || a != a ? a : b;
  }  // a NaN on either side wins
};

template <class T, class A>
void store(T& to, A value) {
  if constexpr (std::is_same_v<T, bf16>) {
    to.bits = bf16(value).bits;  // assigning the struct itself keeps g++ from vectorising
  } else {
    to = static_cast<T>(value);
  }
}

// Elements [begin, end) of every input are combined and written to every output; an output may be an input. Blocks stay
// in the L1 cache, so memory is read once per input and written once per output.
template <class T, class Op>
void reduce_range(const std::vector<const T*>& inputs, const std::vector<T*>& outputs, int64_t begin, int64_t end) {
  using A = typename Op::template Wide<T>;
  constexpr int64_t kBlock = 1024;
  alignas(64) A sum[kBlock];
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t count = std::min(kBlock, end - start);
    const T* first = inputs[0] + start;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<A>(first[i]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const T* next = inputs[k] + start;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sum[i] = Op::combine(sum[i], static_cast<A>(next[i]));
    }
    for (T* output : outputs) {
      T* to = output + start;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) store(to[i], sum[i]);
    }
  }
}

}  // namespace witan::reduce_detail
