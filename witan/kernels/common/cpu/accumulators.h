// Dispatch over the dtypes in which sums are kept.
#pragma once

#include <cassert>

#include "witan/tensor/dtype.h"

namespace witan::kernels::cpu {

// body.operator()<A>() with float or double.
template <class Body>
void dispatch_accumulator(DType dtype, const Body& body) {
  assert(dtype == DType::f32 || dtype == DType::f64);
  if (dtype == DType::f64)
    body.template operator()<double>();
  else
    body.template operator()<float>();
}

}  // namespace witan::kernels::cpu
