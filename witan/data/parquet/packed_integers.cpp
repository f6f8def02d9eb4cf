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

using tables::Damaged;
using tables::intact;

uint64_t DeltaReader::Cursor::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    intact(!bytes.empty(), "its delta-coded integers end early");
    const auto next = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= uint64_t{next & 0x7Fu} << shift;
    if (next < 0x80) return value;
  }
  throw Damaged{"a delta-coded integer has more than 64 bits"};
}

int64_t DeltaReader::Cursor::zigzag() {
  const uint64_t value = varint();
  return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

std::string_view DeltaReader::Cursor::take(uint64_t wanted) {
  intact(wanted <= bytes.size(), "its delta-coded integers end early");
  const std::string_view taken = bytes.substr(0, wanted);
  bytes.remove_prefix(wanted);
  return taken;
}

DeltaReader::DeltaReader(std::string_view bytes) : total_(bytes.size()), cursor_{bytes} {
  constexpr uint64_t kMostBlock = 1 << 24;
  block_ = cursor_.varint();
  miniblocks_ = cursor_.varint();
  count_ = cursor_.varint();
  value_ = static_cast<uint64_t>(cursor_.zigzag());
  intact(block_ > 0 && block_ <= kMostBlock && miniblocks_ > 0 && miniblocks_ <= block_ && block_ % miniblocks_ == 0 &&
             block_ / miniblocks_ % 8 == 0,
         "delta-coded blocks of ", block_, " integers in ", miniblocks_, " parts");
  miniblock_ = block_ / miniblocks_;
}

void DeltaReader::begin_block() {
  least_ = static_cast<uint64_t>(cursor_.zigzag());
  widths_ = cursor_.take(miniblocks_);
  in_block_ = block_;
}

void DeltaReader::begin_miniblock() {
  if (in_block_ == 0) begin_block();
  const auto width = static_cast<unsigned char>(widths_.front());
  widths_.remove_prefix(1);
  intact(width <= 64, "delta-coded integers of ", int{width}, " bits");
  bits_ = PackedBits(cursor_.take(width * miniblock_ / 8), width);
  index_ = 0;
  in_miniblock_ = miniblock_;
  in_block_ -= miniblock_;
}

int64_t DeltaReader::next() {
  intact(done_ < count_, "it has fewer delta-coded integers than values");
  if (done_++ > 0) {
    if (in_miniblock_ == 0) begin_miniblock();
    --in_miniblock_;
    value_ += least_ + bits_.at(index_++);
  }
  return static_cast<int64_t>(value_);
}

uint64_t DeltaReader::length() const {
  Cursor cursor = cursor_;
  uint64_t left = count_ > 0 ? count_ - 1 : 0;
  while (left > 0) {
    cursor.zigzag();
    for (const char width : cursor.take(miniblocks_)) {
      if (left == 0) break;  // no bytes for miniblocks without values
      cursor.take(static_cast<unsigned char>(width) * miniblock_ / 8);
      left -= std::min(left, miniblock_);
    }
  }
  return total_ - cursor.bytes.size();
}

}  // namespace witan::parquet
