// How far quantised values are from what they stand for.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

namespace witan {

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
