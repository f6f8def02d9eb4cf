// Reads and writes weights in updates, and dispatches over dtypes. A weight is the value itself if that is as wide as
// its accumulator, otherwise the master weight that value and remainder form together.
#pragma once

#include <cassert>
#include <type_traits>

#include "witan/base/numbers/half.h"
#include "witan/tensor/dtype.h"
#include "witan/tensor/tensor.h"

namespace witan::kernels::cpu {

template <class T>
inline constexpr bool kIsSplit = !std::is_same_v<T, Accumulator<T>>;

// The elements of a remainder (base/numbers/half.h).
template <class T>
using Remainder = std::conditional_t<std::is_same_v<T, f16>, float, bf16>;

template <class T>
[[gnu::always_inline]] inline Accumulator<T> weight(const T* value, const Remainder<T>* remainder, int64_t i) {
  if constexpr (std::is_same_v<T, f16>)
    return join(value[i], remainder[i]);
  else if constexpr (kIsSplit<T>)
    return join({value[i].bits, remainder[i].bits});
  else
    return value[i];
}
template <class T>
[[gnu::always_inline]] inline void store_weight(T* value, Remainder<T>* remainder, int64_t i, Accumulator<T> p) {
  if constexpr (std::is_same_v<T, f16>) {
    const f16 narrow(p);
    value[i].bits = narrow.bits;
    remainder[i] = rest_of(p, narrow);
  } else if constexpr (kIsSplit<T>) {
    const SplitFloat halves = split(p);
    value[i].bits = halves.upper;
    remainder[i].bits = halves.lower;
  } else {
    value[i] = p;
  }
}

template <class T>
Remainder<T>* remainder_of(const Tensor& value, const Tensor& remainder) {
  assert(remainder.defined() == kIsSplit<T> && (!kIsSplit<T> || remainder.shape() == value.shape()));
  return kIsSplit<T> ? remainder.data<Remainder<T>>() : nullptr;
}

// Calls body.operator()<T, G>() with the types of value and gradient. The gradients of float16 values are float32,
// because float16's range is too small for sums.
template <class Body>
void dispatch_update(const Tensor& value, const Tensor& gradient, const Body& body) {
  assert(gradient.dtype() != DType::f16);
  dispatch_floating(value.dtype(), [&]<class T>() {
    if constexpr (std::is_same_v<T, f16>) {
      assert(gradient.dtype() == DType::f32);
      body.template operator()<T, float>();
    } else {
      dispatch_floating(gradient.dtype(), [&]<class G>() {
        if constexpr (!std::is_same_v<G, f16>) body.template operator()<T, G>();
      });
    }
  });
}

// Calls body.operator()<A>() with float or double.
template <class Body>
void dispatch_accumulator(DType dtype, const Body& body) {
  assert(dtype == DType::f32 || dtype == DType::f64);
  if (dtype == DType::f64)
    body.template operator()<double>();
  else
    body.template operator()<float>();
}

}  // namespace witan::kernels::cpu
