// Apache Thrift's compact protocol (doc/specs/thrift-compact-protocol.md of the Thrift project), as far as Parquet's
// metadata needs it: structs are read field by field, and what is unknown is skipped. For hostile bytes: nothing is
// allocated that the bytes do not hold, and nesting is bounded.
#pragma once

#include <cstdint>
#include <string_view>

namespace witan::parquet {

class ThriftReader {
 public:
  enum class Type : uint8_t {
    stop = 0,
    true_value = 1,
    false_value = 2,
    byte = 3,
    i16 = 4,
    i32 = 5,
    i64 = 6,
    real = 7,
    binary = 8,
    list = 9,
    set = 10,
    map = 11,
    structure = 12
  };
  struct Field {
    Type type = Type::stop;
    int16_t id = 0;
  };

  // `bytes` must outlive the reader. All functions throw tables::Damaged.
  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}

  // Reads a struct: calls `read(field)` for each field, which must consume it with one of the functions below.
  template <class Read>
  void fields(const Read& read) {
    enter();
    Field field;
    while (next_field(field)) read(static_cast<const Field&>(field));
    --depth_;
  }
  // A field that is a struct, or a list: `read()` is called once for each element, which must consume it (structs with
  // fields(), texts with text(), integers with element_integer()).
  template <class Read>
  void structure(const Field& field, const Read& read) {
    expect(field, Type::structure);
    fields(read);
  }
  template <class Read>
  void list(const Field& field, Type element, const Read& read) {
    const uint32_t count = begin_list(field, element);
    for (uint32_t i = 0; i < count; ++i) read();
  }

  bool boolean(const Field& field);
  int64_t integer(const Field& field);  // of any width
  int32_t integer32(const Field& field);
  std::string_view text(const Field& field);
  std::string_view text();  // an element of a list
  void skip(const Field& field) { skip(field.type, true); }

  uint64_t position() const { return at_; }

 private:
  bool next_field(Field& field);  // from the one before it, whose id it counts from
  void enter();
  void expect(const Field& field, Type type) const;
  uint32_t begin_list(const Field& field, Type element);
  struct ListHead {
    Type element = Type::stop;
    uint32_t count = 0;
  };
  ListHead list_head();
  void skip(Type type, bool is_field);
  void skip_list();
  void skip_map();
  uint8_t byte();
  uint64_t varint();
  int64_t zigzag();
  std::string_view take(uint64_t bytes);

  std::string_view bytes_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace witan::parquet
