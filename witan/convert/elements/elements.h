// Elements of tensors as files hold them, in whatever floating dtype: copied, rounded and dequantised.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace witan {

// Floating dtypes of files, by their names there. Others are not weights. Those from q5_0 on stand in blocks
// (block_codec.h) and have no size of their own.
enum class Element : uint8_t { f64, f32, f16, bf16, f8_e4m3, f8_e8m0, q5_0, q8_0, q4_k, q5_k, q6_k, mxfp4 };

// "F32" …; throws CheckpointError("WHERE: …") for another one.
Element element_from_name(std::string_view name, std::string_view where);
std::string_view name_of(Element element);
int64_t size_of(Element element);
// Whether every value of `narrow` is one of `wide` too (of MXFP4 those that weights have).
bool holds(Element wide, Element narrow);

// `count` elements of dtype `from_type`, each `stride` elements after the one before, to consecutive ones of dtype
// `to_type`: the same bits where both are one dtype, else rounded to nearest even. Neither need be aligned. To an 8-bit
// dtype nothing is converted: an internal error.
void copy_elements(Element to_type, std::byte* to, Element from_type, const std::byte* from, int64_t stride,
                   int64_t count);

// How many elements are NaN or infinite, of float32, float64, float16 or bfloat16; of other dtypes, 0. They need not be
// aligned.
int64_t count_non_finite(Element type, std::span<const std::byte> elements);

// The distance of quantised values from the values that they stand for.
struct RoundingError {
  double squared_error = 0, squared_values = 0;

  // `after` may be longer.
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
  // The root of the mean squared error over that of the mean squared value; 0 where all values are 0.
  double relative() const { return squared_values > 0 ? std::sqrt(squared_error / squared_values) : 0; }
};

// Throws CheckpointError that names the tensor where a value is NaN, infinite, or beyond the largest float16, which
// scales may be held in.
void require_quantisable(std::span<const float> values, std::string_view tensor, std::string_view type);

}  // namespace witan
