// Integers as stored in files: little-endian, at any address.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace witan {

static_assert(std::endian::native == std::endian::little, "token files are mapped without conversion");

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace witan
