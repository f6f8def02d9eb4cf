// Parquet's encodings, written directly from Encodings.md for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace witan::parquet {

inline void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

inline void append_zigzag(std::string& out, int64_t value) {
  append_varint(out, (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
}

// Packs `width` bits of each value, the lowest first, into whole bytes.
inline void append_packed(std::string& out, const std::vector<uint64_t>& values, int width) {
  std::vector<bool> bits;
  for (const uint64_t value : values)
    for (int bit = 0; bit < width; ++bit) bits.push_back(value >> bit & 1);
  for (size_t at = 0; at < bits.size(); at += 8) {
    int byte = 0;
    for (size_t bit = 0; bit < 8 && at + bit < bits.size(); ++bit) byte |= bits[at + bit] << bit;
    out += static_cast<char>(byte);
  }
}

inline void append_run(std::string& out, uint32_t value, size_t count, int width) {
  append_varint(out, count << 1);
  for (int bit = 0; bit < width; bit += 8) out += static_cast<char>(value >> bit);
}

// Encodes DELTA_BINARY_PACKED.
inline std::string delta_packed(const std::vector<int64_t>& values, size_t block, size_t miniblocks) {
  std::string out;
  append_varint(out, block);
  append_varint(out, miniblocks);
  append_varint(out, values.size());
  append_zigzag(out, values.empty() ? 0 : values[0]);
  for (size_t begin = 1; begin < values.size(); begin += block) {
    const size_t end = std::min(values.size(), begin + block);
    std::vector<int64_t> deltas;
    for (size_t i = begin; i < end; ++i)
      deltas.push_back(static_cast<int64_t>(static_cast<uint64_t>(values[i]) - static_cast<uint64_t>(values[i - 1])));
    const int64_t least = *std::min_element(deltas.begin(), deltas.end());
    append_zigzag(out, least);
    std::string widths, packed;
    for (size_t m = 0; m < miniblocks; ++m) {
      const size_t size = block / miniblocks;
      std::vector<uint64_t> group;
      uint64_t all = 0;
      for (size_t i = m * size; i < std::min(deltas.size(), (m + 1) * size); ++i) {
        group.push_back(static_cast<uint64_t>(deltas[i]) - static_cast<uint64_t>(least));
        all |= group.back();
      }
      int width = 0;
      while (width < 64 && all >> width) ++width;
      widths += static_cast<char>(group.empty() ? 17 : width);  // the width of a part without values is arbitrary
      if (group.empty()) continue;
      group.resize(size);
      append_packed(packed, group, width);
    }
    out += widths + packed;
  }
  return out;
}

}  // namespace witan::parquet
