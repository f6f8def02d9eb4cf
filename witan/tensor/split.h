// Float32 tensors that are kept in halves (base/split_float.h): the upper one is a bfloat16 tensor, the lower one its
// remainder. Here they become the float32 that files hold, in pieces, so that the whole is nowhere in memory; rules and
// devices as in tensor/host.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan {

// What a remainder's tensor says it is: 16 bits, which nobody reads as a number.
inline constexpr DType kRemainder = DType::bf16;

// Both are contiguous and of one shape. The span's elements are those from `first` on.
void join_to_host(std::span<float> to, const Tensor& upper, const Tensor& lower, int64_t first);
// `from` need not be aligned.
void split_from_host(const Tensor& upper, const Tensor& lower, int64_t first, const std::byte* from, int64_t elements);

inline constexpr int64_t kSplitPiece = int64_t{1} << 18;  // elements

// Calls body(pointer, bytes) with the bytes of all joined elements in order.
template <class Body>
void for_joined_bytes(const Tensor& upper, const Tensor& lower, const Body& body) {
  std::vector<float> piece(static_cast<size_t>(std::min(upper.elements(), kSplitPiece)));
  for (int64_t at = 0; at < upper.elements(); at += kSplitPiece) {
    const auto here = std::span(piece).first(static_cast<size_t>(std::min(kSplitPiece, upper.elements() - at)));
    join_to_host(here, upper, lower, at);
    const auto bytes = std::as_bytes(here);
    body(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
}

}  // namespace witan
