// Packed integers of Parquet's Encodings.md: its hybrid of run lengths and packed bits ("RLE") for levels, dictionary
// indices and booleans, and differences (DELTA_BINARY_PACKED).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace witan::parquet {

// Values of a fixed number of bits, at most 64, from byte 0 of `bytes` on, the first value in the lowest bits.
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

  std::string_view bytes_;  // after the current run
  int width_ = 0;
  uint64_t left_ = 0;  // of the run
  bool packed_ = false;
  uint32_t repeated_ = 0;
  PackedBits bits_;
  uint64_t index_ = 0;  // within bits_
};

// DELTA_BINARY_PACKED: integers as differences, packed block by block.
class DeltaReader {
 public:
  // `bytes` begins with the encoded integers, may go on after them, and must outlive the reader. Throws
  // tables::Damaged, as all do.
  explicit DeltaReader(std::string_view bytes);

  uint64_t count() const { return count_; }
  // The next integer; sums wrap around at 64 bits, as the format wants. Throws beyond count().
  int64_t next();
  // How many bytes the integers take, found from the heads of the blocks alone; before the first next().
  uint64_t length() const;

 private:
  struct Cursor {
    std::string_view bytes;
    uint64_t varint();
    int64_t zigzag();
    std::string_view take(uint64_t count);
  };
  void begin_block();
  void begin_miniblock();

  uint64_t total_ = 0;  // of the bytes
  Cursor cursor_;
  uint64_t block_ = 0, miniblocks_ = 0, miniblock_ = 0;  // values of a block, its miniblocks, values of each
  uint64_t count_ = 0, done_ = 0;
  uint64_t value_ = 0, least_ = 0;            // the last value; the block's least difference
  std::string_view widths_;                   // of the block's miniblocks that are to come
  uint64_t in_block_ = 0, in_miniblock_ = 0;  // values left
  PackedBits bits_;
  uint64_t index_ = 0;
};

}  // namespace witan::parquet
