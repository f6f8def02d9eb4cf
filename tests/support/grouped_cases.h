// Sizes and dtypes of grouped products.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "witan/tensor/dtype.h"

namespace witan::testing {

// Rows of a pool [capacity, K], of which group e has [begin[e], begin[e] + count[e]), times matrices [N, K].
struct GroupedCase {
  int64_t capacity, K, N;
  std::vector<int64_t> begin, count;
};

// Of operands, and of the gradient of a weight.
inline constexpr std::pair<DType, DType> kGroupedTypes[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32},
                                                            {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
                                                            {DType::f16, DType::f16},   {DType::f16, DType::f32}};

}  // namespace witan::testing
