// FlatBuffers (the format's internals.md), read field by field from hostile bytes: every offset is checked where it is
// followed, and nothing is allocated. A table that is shared may be met often: who follows vectors of tables counts
// them.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "witan/data/tables/damage.h"

namespace witan::arrow {

class FlatTable;

// Elements of one size, one after the other.
class FlatVector {
 public:
  FlatVector() = default;
  FlatVector(std::string_view bytes, size_t at, uint32_t count, size_t width)
      : bytes_(bytes), at_(at), count_(count), width_(width) {}

  uint32_t size() const { return count_; }
  // The number at byte `offset` of an element, which must exist.
  template <class T>
  T number(uint32_t index, size_t offset = 0) const {
    T value;
    std::memcpy(&value, bytes_.data() + at_ + index * width_ + offset, sizeof value);
    return value;
  }
  // An element of a vector of tables. Throws tables::Damaged.
  FlatTable table(uint32_t index) const;

 private:
  std::string_view bytes_;
  size_t at_ = 0;
  uint32_t count_ = 0;
  size_t width_ = 0;
};

// All functions throw tables::Damaged; fields are numbered from 0, in the order of the schema.
class FlatTable {
 public:
  // The root table of a buffer, which must outlive it.
  static FlatTable root(std::string_view bytes);
  FlatTable(std::string_view bytes, uint64_t at);

  template <class T>
  T number(int field, T missing) const {
    const std::optional<size_t> at = find(field, sizeof(T));
    if (at) std::memcpy(&missing, bytes_.data() + *at, sizeof(T));
    return missing;
  }
  std::optional<FlatTable> table(int field) const;
  std::string_view text(int field) const;  // empty if it is missing
  // `width`: bytes of an element; 4 for tables. Empty if it is missing.
  FlatVector vector(int field, size_t width) const;

 private:
  // The position of the field; nothing if it is missing.
  std::optional<size_t> find(int field, size_t bytes) const;
  // The position that the offset in the field points to.
  std::optional<uint64_t> follow(int field) const;

  std::string_view bytes_;
  size_t at_ = 0, vtable_ = 0, vtable_bytes_ = 0;
};

}  // namespace witan::arrow
