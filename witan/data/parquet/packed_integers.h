// Parquet's hybrid of run lengths and packed bits (Encodings.md, "RLE"): levels, dictionary indices, booleans.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace witan::parquet {

// Values of a fixed number of bits, the first in the lowest bits, from byte 0 of `bytes` on. Of 64 bits at most.
class PackedBits {
 public:
  PackedBits() = default;
  PackedBits(std::string_view bytes, int width) : bytes_(bytes), width_(width) {}

  // The bytes must have them: (index + 1) * width bits.
  uint64_t at(uint64_t index) const;

 private:
  std::string_view bytes_;
  int width_ = 0;
};

class HybridReader {
 public:
  HybridReader() = default;
  // Values of `width` bits, at most 32; `bytes` must outlive the reader. Throws tables::Damaged for the width.
  HybridReader(std::string_view bytes, int width);

  // The next values. Throws tables::Damaged if there are fewer.
  void read(std::span<uint32_t> out);

 private:
  void begin_run();
  uint64_t varint();

  std::string_view bytes_;  // behind the current run
  int width_ = 0;
  uint64_t left_ = 0;  // of the run
  bool packed_ = false;
  uint32_t repeated_ = 0;
  PackedBits bits_;
  uint64_t index_ = 0;  // within bits_
};

}  // namespace witan::parquet
