#include "witan/data/arrow/flatbuffer.h"

namespace witan::arrow {

using tables::intact;

namespace {

template <class T>
T number_at(std::string_view bytes, uint64_t at) {
  intact(at <= bytes.size() && sizeof(T) <= bytes.size() - at, "its metadata point beyond their ", bytes.size(),
         " bytes");
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

FlatTable FlatVector::table(uint32_t index) const {
  const size_t at = at_ + index * width_;
  return {bytes_, at + uint64_t{number<uint32_t>(index)}};
}

FlatTable FlatTable::root(std::string_view bytes) {
  return {bytes, number_at<uint32_t>(bytes, 0)};
}

FlatTable::FlatTable(std::string_view bytes, uint64_t at) : bytes_(bytes), at_(at) {
  const int64_t back = number_at<int32_t>(bytes, at);
  const int64_t vtable = static_cast<int64_t>(at) - back;
  intact(vtable >= 0, "its metadata point before their first byte");
  vtable_ = static_cast<size_t>(vtable);
  vtable_bytes_ = number_at<uint16_t>(bytes, vtable_);
  intact(vtable_bytes_ >= 4 && vtable_bytes_ <= bytes.size() - vtable_, "a table of its metadata has a head of ",
         vtable_bytes_, " bytes");
}

std::optional<size_t> FlatTable::find(int field, size_t bytes) const {
  const size_t entry = 4 + 2 * static_cast<size_t>(field);
  if (entry + 2 > vtable_bytes_) return std::nullopt;
  const auto offset = number_at<uint16_t>(bytes_, vtable_ + entry);
  if (offset == 0) return std::nullopt;
  const size_t at = at_ + offset;
  intact(at <= bytes_.size() && bytes <= bytes_.size() - at, "its metadata point beyond their ", bytes_.size(),
         " bytes");
  return at;
}

std::optional<uint64_t> FlatTable::follow(int field) const {
  const std::optional<size_t> at = find(field, sizeof(uint32_t));
  if (!at) return std::nullopt;
  return *at + uint64_t{number_at<uint32_t>(bytes_, *at)};
}

std::optional<FlatTable> FlatTable::table(int field) const {
  const std::optional<uint64_t> at = follow(field);
  if (!at) return std::nullopt;
  return FlatTable(bytes_, *at);
}

std::string_view FlatTable::text(int field) const {
  const FlatVector letters = vector(field, 1);
  return letters.size() == 0 ? std::string_view() : bytes_.substr(*follow(field) + sizeof(uint32_t), letters.size());
}

FlatVector FlatTable::vector(int field, size_t width) const {
  const std::optional<uint64_t> at = follow(field);
  if (!at) return {};
  const auto count = number_at<uint32_t>(bytes_, *at);
  const uint64_t begin = *at + sizeof(uint32_t);
  intact(uint64_t{count} * width <= bytes_.size() - begin, "a vector of ", count, " elements in metadata of ",
         bytes_.size(), " bytes");
  return {bytes_, begin, count, width};
}

}  // namespace witan::arrow
