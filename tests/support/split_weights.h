// Float32 weights in two (base/numbers/split_float.h), as tests fill and read them.
#pragma once

#include <bit>
#include <vector>

#include "witan/tensor/device.h"
#include "witan/tensor/host.h"

namespace witan::testing {

// Writes the values of 16 bits into `value` and returns the remainders. Everything is on the CPU.
inline Tensor split_into(Stream& stream, const Tensor& value, const Tensor& whole) {
  Tensor remainder = stream.empty(value.shape(), remainder_dtype(value.dtype()));
  split_from_host(value, remainder, 0, whole.raw(), whole.elements());
  return remainder;
}

// Float32 [n]: numbers of every kind, those between bfloat16's and the middles among them, infinities and NaNs.
inline Tensor masters_of_every_kind(Stream& stream) {
  std::vector<float> all;
  for (const uint32_t upper : {0x0000u, 0x0001u, 0x007Fu, 0x0080u, 0x3F80u, 0x4049u, 0x7F7Fu, 0x7F80u, 0x7FFFu})
    for (const uint32_t sign : {0u, 0x8000u})
      for (const uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
        all.push_back(std::bit_cast<float>((upper | sign) << 16 | lower));
  Tensor out = stream.empty({static_cast<int64_t>(all.size())}, DType::f32);
  stream.write(out, all.data());
  return out;
}

inline std::vector<double> joined(const Tensor& value, const Tensor& remainder) {
  std::vector<double> all;
  for_joined_bytes(value, remainder, [&](const std::byte* bytes, int64_t count) {
    const auto* floats = reinterpret_cast<const float*>(bytes);
    all.insert(all.end(), floats, floats + count / static_cast<int64_t>(sizeof(float)));
  });
  return all;
}

}  // namespace witan::testing
