#include "witan/data/parquet/packed_integers.h"

#include <algorithm>
#include <cstring>

#include "witan/data/tables/damage.h"

namespace witan::parquet {

using tables::Damaged;
using tables::intact;

uint64_t PackedBits::at(uint64_t index) const {
  if (width_ == 0) return 0;
  const uint64_t first = index * static_cast<uint64_t>(width_);
  const uint64_t byte = first / 8, shift = first % 8;
  uint64_t low = 0;
  const uint64_t have = bytes_.size() - byte;
  std::memcpy(&low, bytes_.data() + byte, std::min<uint64_t>(have, sizeof low));
  low >>= shift;
  if (shift + static_cast<uint64_t>(width_) > 64)  // the last bits are in a ninth byte
    low |= uint64_t{static_cast<unsigned char>(bytes_[byte + 8])} << (64 - shift);
  return width_ == 64 ? low : low & ((uint64_t{1} << width_) - 1);
}

HybridReader::HybridReader(std::string_view bytes, int width) : bytes_(bytes), width_(width) {
  intact(width >= 0 && width <= 32, "packed integers of ", width, " bits");
}

uint64_t HybridReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    intact(!bytes_.empty(), "the runs of its levels or indices end early");
    const auto next = static_cast<unsigned char>(bytes_.front());
    bytes_.remove_prefix(1);
    value |= uint64_t{next & 0x7Fu} << shift;
    if (next < 0x80) return value;
  }
  throw Damaged{"a run of its levels or indices has a length of more than 32 bits"};
}

void HybridReader::begin_run() {
  const uint64_t head = varint();
  packed_ = head & 1;
  const auto width = static_cast<uint64_t>(width_);
  if (packed_) {
    // Groups of 8 values, each of `width` bytes; the last ones may be cut off where no value needs them.
    const uint64_t groups = head >> 1;
    const uint64_t bytes = std::min<uint64_t>(groups * width, bytes_.size());
    left_ = groups * width <= bytes_.size() ? groups * 8 : bytes * 8 / width;
    bits_ = PackedBits(bytes_.substr(0, bytes), width_);
    index_ = 0;
    bytes_.remove_prefix(bytes);
    intact(left_ > 0, "a run of its levels or indices is empty");
    return;
  }
  const uint64_t bytes = (width + 7) / 8;
  intact(bytes <= bytes_.size() && head >> 1 > 0, "the runs of its levels or indices end early, or one is empty");
  repeated_ = 0;
  if (bytes > 0) std::memcpy(&repeated_, bytes_.data(), bytes);
  bytes_.remove_prefix(bytes);
  left_ = head >> 1;
}

void HybridReader::read(std::span<uint32_t> out) {
  while (!out.empty()) {
    if (left_ == 0) begin_run();
    const auto count = static_cast<size_t>(std::min<uint64_t>(left_, out.size()));
    if (packed_)
      for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint32_t>(bits_.at(index_++));
    else
      std::fill_n(out.begin(), count, repeated_);
    left_ -= count;
    out = out.subspan(count);
  }
}

}  // namespace witan::parquet
