// Rounding a result into memory inside a `#pragma omp simd` loop.
#pragma once

#include "witan/base/numbers/half.h"

namespace witan::kernels::cpu {

// to = value. Not `to = bf16(value)`: g++ copies a struct there, and then does not vectorise the loop (10 times
// slower).
template <class T, class A>
[[gnu::always_inline]] inline void store(T& to, A value) {
  to = static_cast<T>(value);
}
template <class A>
[[gnu::always_inline]] inline void store(bf16& to, A value) {
  to.bits = bf16(value).bits;
}
template <class A>
[[gnu::always_inline]] inline void store(f16& to, A value) {
  to.bits = f16(value).bits;
}

}  // namespace witan::kernels::cpu
