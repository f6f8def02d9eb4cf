// Float32 tensors that are kept in halves (base/split_float.h): the upper one is a bfloat16 tensor, the lower one its
// remainder. Here they become the float32 that files hold, in pieces, so that the whole is nowhere in memory; rules and
// devices as in tensor/host.h.
#pragma once

#include <cstddef>
#include <functional>

#include "witan/tensor/tensor.h"

namespace witan {

// What a remainder's tensor says it is: 16 bits, which nobody reads as a number.
inline constexpr DType kRemainder = DType::bf16;

// Both halves are contiguous and of one shape.

// Calls body(pointer, bytes) with the bytes of all joined elements in order.
void for_joined_bytes(const Tensor& upper, const Tensor& lower,
                      const std::function<void(const std::byte* bytes, int64_t count)>& body);
// Splits `elements` float32, which need not be aligned, into the halves' elements from `first` on.
void split_from_host(const Tensor& upper, const Tensor& lower, int64_t first, const std::byte* from, int64_t elements);

}  // namespace witan
