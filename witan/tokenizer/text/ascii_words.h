// Looks at eight bytes of a text at a time, in the bytes of a word of the processor.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace witan {

// Of each byte the highest bit says whether it is in the class; the other bits are 0.
inline constexpr uint64_t kHighBits = 0x8080808080808080u;

constexpr uint64_t ascii_between(uint64_t bytes, uint8_t first, uint8_t last) {
  constexpr uint64_t kOnes = 0x0101010101010101u;
  const uint64_t low = bytes & ~kHighBits;  // sums with less than 0x81 do not reach the next byte
  return ((low + kOnes * (0x80u - first)) ^ (low + kOnes * (0x7Fu - last))) & ~bytes & kHighBits;
}

constexpr uint64_t ascii(uint64_t bytes) {
  return ~bytes & kHighBits;
}
constexpr uint64_t ascii_small_letters(uint64_t bytes) {
  return ascii_between(bytes, 'a', 'z');
}
constexpr uint64_t ascii_letters(uint64_t bytes) {
  return ascii_between(bytes | 0x2020202020202020u, 'a', 'z');
}
constexpr uint64_t ascii_but_digits(uint64_t bytes) {
  return ascii(bytes) & ~ascii_between(bytes, '0', '9');
}

// The first byte from p on that is not in the class, or one of the last seven bytes of the text.
template <class Class>
inline const char* skip_ascii(const char* p, const char* end, Class in_class) {
  if constexpr (std::endian::native != std::endian::little) return p;
  while (end - p >= 8) {
    uint64_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    if (const uint64_t others = in_class(bytes) ^ kHighBits) return p + std::countr_zero(others) / 8;
    p += 8;
  }
  return p;
}

}  // namespace witan
