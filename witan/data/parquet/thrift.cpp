#include "witan/data/parquet/thrift.h"

#include <limits>

#include "witan/data/tables/damage.h"

namespace witan::parquet {

using tables::Damaged;
using tables::intact;

namespace {

constexpr int kMostDepth = 32;  // Parquet's own structs are 7 deep

bool is_integer(ThriftReader::Type type) {
  using Type = ThriftReader::Type;
  return type == Type::byte || type == Type::i16 || type == Type::i32 || type == Type::i64;
}

}  // namespace

void ThriftReader::enter() {
  intact(++depth_ <= kMostDepth, "byte ", at_, " of its Thrift: nested deeper than ", kMostDepth);
}

uint8_t ThriftReader::byte() {
  intact(at_ < bytes_.size(), "its Thrift ends early, at byte ", at_);
  return static_cast<uint8_t>(bytes_[at_++]);
}

std::string_view ThriftReader::take(uint64_t bytes) {
  intact(bytes <= bytes_.size() - at_, "byte ", at_, " of its Thrift: ", bytes, " bytes are declared where ",
         bytes_.size() - at_, " are left");
  at_ += bytes;
  return bytes_.substr(at_ - bytes, bytes);
}

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint64_t next = byte();
    value |= (next & 0x7F) << shift;
    if (next < 0x80) return value;
  }
  throw Damaged{cat("byte ", at_, " of its Thrift: an integer of more than 64 bits")};
}

int64_t ThriftReader::zigzag() {
  const uint64_t value = varint();
  return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

// A byte has the type and, if it is 1 to 15, how much larger the id is than the one before.
bool ThriftReader::next_field(Field& field) {
  const uint8_t head = byte();
  if (head == 0) return false;
  intact((head & 15) >= 1 && (head & 15) <= 12, "byte ", at_ - 1, " of its Thrift: there is no type ", head & 15);
  const int64_t id = head >> 4 ? field.id + (head >> 4) : zigzag();
  intact(id >= std::numeric_limits<int16_t>::min() && id <= std::numeric_limits<int16_t>::max(), "byte ", at_,
         " of its Thrift: there is no field ", id);
  field = {static_cast<Type>(head & 15), static_cast<int16_t>(id)};
  return true;
}

void ThriftReader::expect(const Field& field, Type type) const {
  intact(field.type == type, "byte ", at_, " of its Thrift: field ", field.id, " has type ",
         static_cast<int>(field.type), " instead of ", static_cast<int>(type));
}

bool ThriftReader::boolean(const Field& field) {
  if (field.type != Type::true_value) expect(field, Type::false_value);
  return field.type == Type::true_value;
}

int64_t ThriftReader::integer(const Field& field) {
  if (!is_integer(field.type)) expect(field, Type::i64);
  return field.type == Type::byte ? static_cast<int8_t>(byte()) : zigzag();
}

int32_t ThriftReader::integer32(const Field& field) {
  const int64_t value = integer(field);
  intact(value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max(), "byte ", at_,
         " of its Thrift: field ", field.id, " = ", value, " has more than 32 bits");
  return static_cast<int32_t>(value);
}

std::string_view ThriftReader::text(const Field& field) {
  expect(field, Type::binary);
  return text();
}

std::string_view ThriftReader::text() {
  return take(varint());
}

ThriftReader::ListHead ThriftReader::list_head() {
  const uint8_t head = byte();
  const uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
  // Empty lists need no type, and fastparquet gives them none.
  intact(count == 0 || ((head & 15) >= 1 && (head & 15) <= 12), "byte ", at_, " of its Thrift: there is no type ",
         head & 15);
  // Every element has a byte at least.
  intact(count <= bytes_.size() - at_, "byte ", at_, " of its Thrift: ", count, " elements are declared where ",
         bytes_.size() - at_, " bytes are left");
  return {static_cast<Type>(head & 15), static_cast<uint32_t>(count)};
}

uint32_t ThriftReader::begin_list(const Field& field, Type element) {
  expect(field, Type::list);
  const ListHead head = list_head();
  intact(head.count == 0 || head.element == element, "byte ", at_, " of its Thrift: field ", field.id,
         " is a list of type ", static_cast<int>(head.element), " instead of ", static_cast<int>(element));
  return head.count;
}

void ThriftReader::skip_list() {
  enter();
  const ListHead head = list_head();
  for (uint32_t i = 0; i < head.count; ++i) skip(head.element, false);
  --depth_;
}

void ThriftReader::skip_map() {
  enter();
  const uint64_t count = varint();
  intact(count <= bytes_.size() - at_, "byte ", at_, " of its Thrift: a map of ", count, " where ", bytes_.size() - at_,
         " bytes are left");
  if (count > 0) {
    const uint8_t types = byte();
    for (uint64_t i = 0; i < count; ++i) {
      skip(static_cast<Type>(types >> 4), false);
      skip(static_cast<Type>(types & 15), false);
    }
  }
  --depth_;
}

// `is_field`: booleans of fields have their value in the type, those of lists a byte.
void ThriftReader::skip(Type type, bool is_field) {
  constexpr uint64_t kRealBytes = 8;
  switch (type) {
    case Type::true_value:
    case Type::false_value:
      if (!is_field) byte();
      return;
    case Type::byte:
      byte();
      return;
    case Type::i16:
    case Type::i32:
    case Type::i64:
      varint();
      return;
    case Type::real:
      take(kRealBytes);
      return;
    case Type::binary:
      text();
      return;
    case Type::list:
    case Type::set:
      return skip_list();
    case Type::map:
      return skip_map();
    case Type::structure:
      return fields([&](const Field& field) { skip(field); });
    case Type::stop:
      break;
  }
  throw Damaged{cat("byte ", at_, " of its Thrift: there is no type ", static_cast<int>(type))};
}

}  // namespace witan::parquet
