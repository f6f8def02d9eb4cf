// What an update changes: the value where it is as wide as its sums, else the float32 whose upper half it is.
#pragma once

#include <cassert>
#include <type_traits>

#include "witan/base/split_float.h"
#include "witan/tensor/tensor.h"

namespace witan::kernels::cpu {

template <class T>
inline constexpr bool kIsSplit = !std::is_same_v<T, Accumulator<T>>;

template <class T>
[[gnu::always_inline]] inline Accumulator<T> weight(const T* value, const bf16* remainder, int64_t i) {
  if constexpr (kIsSplit<T>)
    return join({value[i].bits, remainder[i].bits});
  else
    return value[i];
}
template <class T>
[[gnu::always_inline]] inline void store_weight(T* value, bf16* remainder, int64_t i, Accumulator<T> p) {
  if constexpr (kIsSplit<T>) {
    const SplitFloat halves = split(p);
    value[i].bits = halves.upper;
    remainder[i].bits = halves.lower;
  } else {
    value[i] = p;
  }
}

template <class T>
bf16* remainder_of(const Tensor& value, const Tensor& remainder) {
  assert(remainder.defined() == kIsSplit<T> && (!kIsSplit<T> || remainder.shape() == value.shape()));
  return kIsSplit<T> ? remainder.data<bf16>() : nullptr;
}

// body.operator()<T, G>() with the types of value and gradient.
template <class Body>
void dispatch_update(const Tensor& value, const Tensor& gradient, const Body& body) {
  dispatch_floating(value.dtype(), [&]<class T>() {
    dispatch_floating(gradient.dtype(), [&]<class G>() { body.template operator()<T, G>(); });
  });
}

}  // namespace witan::kernels::cpu
