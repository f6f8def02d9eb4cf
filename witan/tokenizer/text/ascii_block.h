// Tests many bytes at once for classes of ASCII characters: eight in a 64-bit word, or 64 in vector registers.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__AVX512BW__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace witan {

// The functions for words return one word: the highest bit of each byte is set if that byte is in the class, and the
// other bits are 0.
inline constexpr uint64_t kHighBits = 0x8080808080808080u;

constexpr uint64_t ascii_between(uint64_t bytes, uint8_t first, uint8_t last) {
  constexpr uint64_t kOnes = 0x0101010101010101u;
  const uint64_t low = bytes & ~kHighBits;  // adding less than 0x81 does not carry into the next byte
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

// Returns the first byte from p on that is not in the class, or stops at one of the last seven bytes of the text.
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

// Tests 64 bytes; bit i of each result is byte i.

#if defined(__AVX512BW__)

class AsciiBlock {
 public:
  explicit AsciiBlock(const char* p) : bytes_(_mm512_loadu_si512(p)) {}
  uint64_t equal(char c) const { return _mm512_cmpeq_epi8_mask(bytes_, _mm512_set1_epi8(c)); }
  uint64_t between(char first, char last) const { return between(bytes_, first, last); }
  uint64_t letters() const { return between(_mm512_or_si512(bytes_, _mm512_set1_epi8(0x20)), 'a', 'z'); }
  uint64_t beyond_ascii() const { return _mm512_movepi8_mask(bytes_); }

 private:
  static uint64_t between(__m512i bytes, char first, char last) {
    const __m512i from_first = _mm512_sub_epi8(bytes, _mm512_set1_epi8(first));
    return _mm512_cmple_epu8_mask(from_first, _mm512_set1_epi8(static_cast<char>(last - first)));
  }

  __m512i bytes_;
};

#elif defined(__SSE2__)

class AsciiBlock {
 public:
  explicit AsciiBlock(const char* p) {
    for (int i = 0; i < 4; ++i) bytes_[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
  }
  uint64_t equal(char c) const {
    return mask([&](__m128i bytes) { return _mm_cmpeq_epi8(bytes, _mm_set1_epi8(c)); });
  }
  uint64_t between(char first, char last) const {
    return mask([&](__m128i bytes) { return between(bytes, first, last); });
  }
  uint64_t letters() const {
    return mask([](__m128i bytes) { return between(_mm_or_si128(bytes, _mm_set1_epi8(0x20)), 'a', 'z'); });
  }
  uint64_t beyond_ascii() const {
    return mask([](__m128i bytes) { return bytes; });
  }

 private:
  static __m128i between(__m128i bytes, char first, char last) {
    const __m128i from_first = _mm_sub_epi8(bytes, _mm_set1_epi8(first));
    return _mm_cmpeq_epi8(_mm_min_epu8(from_first, _mm_set1_epi8(static_cast<char>(last - first))), from_first);
  }
  template <class Test>
  uint64_t mask(Test test) const {
    uint64_t bits = 0;
    for (int i = 0; i < 4; ++i)
      bits |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(test(bytes_[i])))) << (16 * i);
    return bits;
  }

  __m128i bytes_[4];
};

#else  // portable

class AsciiBlock {
 public:
  explicit AsciiBlock(const char* p) { std::memcpy(bytes_, p, sizeof bytes_); }
  uint64_t equal(char c) const { return between(c, c); }
  uint64_t between(char first, char last) const {
    return mask([&](char c) { return first <= c && c <= last; });
  }
  uint64_t letters() const { return between('a', 'z') | between('A', 'Z'); }
  uint64_t beyond_ascii() const {
    return mask([](char c) { return (static_cast<unsigned char>(c) & 0x80) != 0; });
  }

 private:
  template <class Test>
  uint64_t mask(Test test) const {
    uint64_t bits = 0;
    for (int i = 0; i < 64; ++i) bits |= uint64_t{test(bytes_[i])} << i;
    return bits;
  }

  char bytes_[64];
};

#endif

}  // namespace witan
