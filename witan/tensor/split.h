// Float32 tensors that are stored as two halves (base/split_float.h): the upper one is a bfloat16 tensor, the lower one
// its remainder. These functions convert to and from the float32 values in files, in chunks, so that the whole tensor
// is never in memory; rules and devices as in tensor/host.h.
#pragma once

#include <cstddef>
#include <functional>

#include "witan/tensor/tensor.h"

namespace witan {

// The dtype of a remainder tensor: 16 bits that are never read as a number.
inline constexpr DType kRemainder = DType::bf16;

// Both halves are contiguous and have the same shape.

// Calls body(pointer, bytes) with the bytes of all joined elements in order.
void for_joined_bytes(const Tensor& upper, const Tensor& lower,
                      const std::function<void(const std::byte* bytes, int64_t count)>& body);
// Splits `elements` float32, which may be unaligned, into the elements of the halves from `first` on.
void split_from_host(const Tensor& upper, const Tensor& lower, int64_t first, const std::byte* from, int64_t elements);

}  // namespace witan
