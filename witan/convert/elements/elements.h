// The element types of tensors in files: conversion between them, and the error of quantising.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace witan {

// The dtypes that weights may have in a file; i64 and i32 have tables of experts. From q5_0 on elements are stored in
// blocks (block_codec.h), so that one element has no size.
enum class Element : uint8_t { f64, f32, f16, bf16, i64, i32, f8_e4m3, f8_e8m0, q5_0, q8_0, q4_k, q5_k, q6_k, mxfp4 };

// Parses "F32" and so on. Throws CheckpointError("WHERE: …") for a name that is not a dtype of weights.
Element element_from_name(std::string_view name, std::string_view where);
std::string_view name_of(Element element);
int64_t size_of(Element element);
// Whether `wide` can represent every value of `narrow` (for MXFP4: every value that weights have).
bool holds(Element wide, Element narrow);

// Copies `count` elements that are `stride` apart to consecutive ones. Equal dtypes keep their bits; otherwise values
// are rounded to nearest even. Neither pointer need be aligned. Converting to an 8-bit dtype is an internal error.
void copy_elements(Element to_type, std::byte* to, Element from_type, const std::byte* from, int64_t stride,
                   int64_t count);

// Counts the elements that are NaN or infinite; 0 for dtypes other than float32, float64, float16 and bfloat16. The
// elements need not be aligned.
int64_t count_non_finite(Element type, std::span<const std::byte> elements);

// The squared error of quantised values, and the squares of the original values.
struct RoundingError {
  double squared_error = 0, squared_values = 0;

  // `after` may be longer than `before`.
  void add(std::span<const float> before, std::span<const float> after) {
    for (size_t i = 0; i < before.size(); ++i) {
      const double value = before[i], error = static_cast<double>(after[i]) - value;
      squared_error += error * error;
      squared_values += value * value;
    }
  }
  RoundingError& operator+=(const RoundingError& other) {
    squared_error += other.squared_error;
    squared_values += other.squared_values;
    return *this;
  }
  // The RMS error divided by the RMS value; 0 if all values are 0.
  double relative() const { return squared_values > 0 ? std::sqrt(squared_error / squared_values) : 0; }
};

// Throws CheckpointError naming the tensor if a value is NaN, infinite, or too large for float16, the dtype of scales
// in some formats.
void require_quantisable(std::span<const float> values, std::string_view tensor, std::string_view type);

}  // namespace witan
