// The wire format of protocol buffers (protobuf.dev/programming-guides/encoding), as far as TensorBoard's files need
// it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace witan::protobuf {

template <class T>
std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// A message; its fields are to be given in the order of their numbers, as protobuf's own encoders write them. Those
// whose value is the default are left out (proto3), but for the chosen one of several alternatives (oneof).
class Message {
 public:
  Message& integer(uint32_t field, uint64_t value) { return value == 0 ? *this : chosen_integer(field, value); }
  Message& number(uint32_t field, double value) { return value == 0 ? *this : chosen_number(field, value); }
  Message& text(uint32_t field, std::string_view value) { return value.empty() ? *this : chosen_text(field, value); }
  Message& packed(uint32_t field, const std::vector<double>& values) {
    if (values.empty()) return *this;
    key(field, kBytes);
    varint(values.size() * sizeof(double));
    for (const double value : values) bytes_ += little_endian(value);
    return *this;
  }
  // A message within this one is there even where it is empty.
  Message& message(uint32_t field, const Message& value) { return chosen_text(field, value.bytes()); }

  Message& chosen_integer(uint32_t field, uint64_t value) {
    key(field, kVarint);
    varint(value);
    return *this;
  }
  Message& chosen_number(uint32_t field, double value) {
    key(field, kFixed64);
    bytes_ += little_endian(value);
    return *this;
  }
  Message& chosen_float(uint32_t field, float value) {
    key(field, kFixed32);
    bytes_ += little_endian(value);
    return *this;
  }
  Message& chosen_text(uint32_t field, std::string_view value) {
    key(field, kBytes);
    varint(value.size());
    bytes_ += value;
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  enum WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  void key(uint32_t field, WireType type) { varint(uint64_t{field} << 3 | type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

}  // namespace witan::protobuf
