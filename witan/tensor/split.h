// Float32 tensors that are stored in two (base/numbers/half.h): the upper one holds values of 16 bits, the lower
// one what the float32 have beyond them, its remainder. These functions convert to and from the float32 values in
// files, in chunks, so that the whole tensor is never in memory; rules and devices as in tensor/host.h.
#pragma once

#include <cstddef>
#include <functional>

#include "witan/tensor/tensor.h"

namespace witan {

// Whether masters of such values are stored in two.
constexpr bool is_split(DType value) {
  return value == DType::bf16 || value == DType::f16;
}
// The dtype of a remainder tensor: beside bfloat16, 16 bits that are never read as a number; beside float16, float32.
inline constexpr DType kRemainder = DType::bf16;
constexpr DType remainder_dtype(DType value) {
  return value == DType::f16 ? DType::f32 : kRemainder;
}

// Both tensors are contiguous and have the same shape.

// Calls body(pointer, bytes) with the bytes of all joined elements in order.
void for_joined_bytes(const Tensor& upper, const Tensor& lower,
                      const std::function<void(const std::byte* bytes, int64_t count)>& body);
// Splits `elements` float32, which may be unaligned, into the elements of the two from `first` on.
void split_from_host(const Tensor& upper, const Tensor& lower, int64_t first, const std::byte* from, int64_t elements);

}  // namespace witan
