#include "witan/convert/elements/elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/numbers/float8.h"
#include "witan/base/numbers/half.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr std::array<std::pair<Element, std::string_view>, 14> kElementNames{{{Element::f64, "F64"},
                                                                              {Element::i64, "I64"},
                                                                              {Element::i32, "I32"},
                                                                              {Element::f32, "F32"},
                                                                              {Element::f16, "F16"},
                                                                              {Element::bf16, "BF16"},
                                                                              {Element::f8_e4m3, "F8_E4M3"},
                                                                              {Element::f8_e8m0, "F8_E8M0"},
                                                                              {Element::q5_0, "Q5_0"},
                                                                              {Element::q8_0, "Q8_0"},
                                                                              {Element::q4_k, "Q4_K"},
                                                                              {Element::q5_k, "Q5_K"},
                                                                              {Element::q6_k, "Q6_K"},
                                                                              {Element::mxfp4, "MXFP4"}}};

double from_e8m0(uint8_t bits) {
  return bits == 0xFF ? NAN : std::ldexp(1.0, bits - 127);
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double load_as_double(Element type, const std::byte* from) {
  switch (type) {
    case Element::f64:
      return load<double>(from);
    case Element::f32:
      return static_cast<double>(load<float>(from));
    case Element::f16:
      return static_cast<double>(static_cast<float>(load<f16>(from)));
    case Element::bf16:
      return static_cast<double>(static_cast<float>(load<bf16>(from)));
    case Element::i64:
      return static_cast<double>(load<int64_t>(from));
    case Element::i32:
      return load<int32_t>(from);
    case Element::f8_e4m3:
      return static_cast<double>(static_cast<float>(load<e4m3>(from)));
    case Element::f8_e8m0:
      return from_e8m0(load<uint8_t>(from));
    default:
      break;
  }
  return 0;
}

template <class To>
void convert(std::byte* to, Element from_type, const std::byte* from, int64_t step, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const To value(load_as_double(from_type, from + i * step));
    std::memcpy(to + i * static_cast<int64_t>(sizeof(To)), &value, sizeof value);
  }
}

void copy_same(std::byte* to, int64_t width, const std::byte* from, int64_t step, int64_t count) {
  if (step == width) {
    std::memcpy(to, from, static_cast<size_t>(count * width));
    return;
  }
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * width, from + i * step, static_cast<size_t>(width));
}

// Counts the elements whose exponent bits, `mask`, are all ones.
template <class Bits>
int64_t count_with_all(Bits mask, std::span<const std::byte> elements) {
  int64_t count = 0;
  for (size_t at = 0; at + sizeof(Bits) <= elements.size(); at += sizeof(Bits))
    count += (load<Bits>(elements.data() + at) & mask) == mask ? 1 : 0;
  return count;
}

}  // namespace

Element element_from_name(std::string_view name, std::string_view where) {
  const auto* found = std::ranges::find(kElementNames, name, &std::pair<Element, std::string_view>::second);
  require<CheckpointError>(found != kElementNames.end(), where, ": unsupported dtype ", clipped(name),
                           ": Witan reads weights in F64, F32, F16, BF16, and F8_E4M3 with scales");
  return found->first;
}

std::string_view name_of(Element element) {
  return std::ranges::find(kElementNames, element, &std::pair<Element, std::string_view>::first)->second;
}

int64_t size_of(Element element) {
  switch (element) {
    case Element::f64:
    case Element::i64:
      return 8;
    case Element::f32:
    case Element::i32:
      return 4;
    case Element::f16:
    case Element::bf16:
      return 2;
    default:
      return 1;
  }
}

bool holds(Element wide, Element narrow) {
  if (wide == narrow || wide == Element::f64) return true;
  if (wide == Element::bf16) return narrow == Element::mxfp4;
  return wide == Element::f32 && narrow != Element::f64 && narrow != Element::i64 && narrow != Element::i32;
}

void copy_elements(Element to_type, std::byte* to, Element from_type, const std::byte* from, int64_t stride,
                   int64_t count) {
  const int64_t width = size_of(from_type), step = stride * width;
  if (to_type == from_type) return copy_same(to, width, from, step, count);
  switch (to_type) {
    case Element::f64:
      return convert<double>(to, from_type, from, step, count);
    case Element::f32:
      return convert<float>(to, from_type, from, step, count);
    case Element::f16:
      return convert<f16>(to, from_type, from, step, count);
    case Element::bf16:
      return convert<bf16>(to, from_type, from, step, count);
    case Element::i64:
      return convert<int64_t>(to, from_type, from, step, count);
    case Element::i32:
      return convert<int32_t>(to, from_type, from, step, count);
    default:
      assert(false);
  }
}

int64_t count_non_finite(Element type, std::span<const std::byte> elements) {
  switch (type) {
    case Element::f64:
      return count_with_all<uint64_t>(0x7FF0'0000'0000'0000, elements);
    case Element::f32:
      return count_with_all<uint32_t>(0x7F80'0000, elements);
    case Element::f16:
      return count_with_all<uint16_t>(0x7C00, elements);
    case Element::bf16:
      return count_with_all<uint16_t>(0x7F80, elements);
    default:
      return 0;
  }
}

void require_quantisable(std::span<const float> values, std::string_view tensor, std::string_view type) {
  constexpr float kLargest = 65504;
  for (const float value : values)
    require<CheckpointError>(std::fabs(value) <= kLargest, "\"", clipped(tensor), "\" has the value ", value,
                             ", which cannot be quantised to ", type,
                             ": values must be finite and no larger than 65504. Export with --dtype bfloat16");
}

}  // namespace witan
