// Element types. The numeric values are not stored anywhere; files use names.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/numbers/float8.h"
#include "witan/base/numbers/half.h"

namespace witan {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, f8 };

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f8:
      return 1;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    default:
      return 8;
  }
}
// Whether values, weights or gradients can have this dtype. float8 is only a dtype of operands (kernels/fp8/fp8.h).
constexpr bool is_floating(DType dtype) {
  return dtype <= DType::f64;
}

// The type in which sums over `dtype` are formed and statistics are kept: float32, or float64 for float64.
constexpr DType accumulator(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

std::string_view name_of(DType dtype);  // "float32", "bfloat16", "float16", "float64", "int32", "int64", "float8_e4m3"
DType dtype_from_name(std::string_view name);  // those and Megatron's fp32, bf16, fp16, fp64; throws ConfigError
inline std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << name_of(dtype);
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<f16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<e4m3>() {
  return DType::f8;
}

// Calls body.template operator()<T>() with the C++ type of a floating `dtype`.
template <class Body>
decltype(auto) dispatch_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::bf16:
      return body.template operator()<bf16>();
    case DType::f16:
      return body.template operator()<f16>();
    case DType::f64:
      return body.template operator()<double>();
    default:
      throw ShapeError(cat("a floating dtype is needed, got ", name_of(dtype)));
  }
}

}  // namespace witan
