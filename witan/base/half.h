// bfloat16: the upper half of a float32. Stored in 16 bits, computed with in float32.
#pragma once

#include <bit>
#include <cstdint>

namespace witan {

struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  // Rounds to nearest even; a NaN stays a (quiet) NaN.
  explicit bf16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = u + 0x7FFFu + ((u >> 16) & 1u);
    const bool is_nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
    bits = static_cast<uint16_t>((is_nan ? (u | 0x00400000u) : rounded) >> 16);
  }
  explicit bf16(double value) : bf16(static_cast<float>(value)) {}

  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

// Accumulator<T>: the type in which sums over T are formed.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

}  // namespace witan
