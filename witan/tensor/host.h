// Synchronous copies between the host and a tensor on any device, for values that are not part of a step. Any thread
// may call them, after waiting for the work of streams on the tensor. They are no-ops on the meta device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan {

// `bytes` from the tensor's first element + `offset`; tensors are contiguous.
void copy_from_host(const Tensor& to, int64_t offset, const void* from, int64_t bytes);
void copy_to_host(void* to, const Tensor& from, int64_t offset, int64_t bytes);

inline void copy_from_host(const Tensor& to, const void* from) {
  copy_from_host(to, 0, from, to.bytes());
}

// Calls body(pointer, bytes) with all bytes of a contiguous tensor in order: once if they are in host memory, in chunks
// of a few MiB if they come from a device.
template <class Body>
void for_host_bytes(const Tensor& tensor, const Body& body) {
  const int64_t bytes = tensor.bytes();
  if (bytes == 0) return;
  if (tensor.device().kind == Device::Kind::cpu) return body(tensor.raw(), bytes);
  constexpr int64_t kPiece = int64_t{8} << 20;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(bytes, kPiece)));
  for (int64_t at = 0; at < bytes; at += kPiece) {
    const int64_t here = std::min(kPiece, bytes - at);
    copy_to_host(piece.data(), tensor, at, here);
    body(static_cast<const std::byte*>(piece.data()), here);
  }
}

// A split float32 tensor is stored as two (base/numbers/half.h): the upper one holds values of 16 bits, the
// lower one the remainder of each float32. for_joined_bytes() and split_from_host() convert them to and from the
// float32 values in files, chunk by chunk, so that the whole tensor is never in host memory.

// Whether the float32 masters of weights of this dtype are stored as two tensors.
constexpr bool is_split(DType value) {
  return value == DType::bf16 || value == DType::f16;
}
// The dtype of the remainder: 16 bits that are never read as a number beside bfloat16, and float32 beside float16.
inline constexpr DType kRemainder = DType::bf16;
constexpr DType remainder_dtype(DType value) {
  return value == DType::f16 ? DType::f32 : kRemainder;
}

// Calls body(pointer, bytes) with the bytes of all joined elements in order. The tensors are contiguous and have the
// same shape.
void for_joined_bytes(const Tensor& upper, const Tensor& lower,
                      const std::function<void(const std::byte* bytes, int64_t count)>& body);
// Splits `elements` float32 values, which may be unaligned, into the elements of both tensors from `first` on.
void split_from_host(const Tensor& upper, const Tensor& lower, int64_t first, const std::byte* from, int64_t elements);

}  // namespace witan
