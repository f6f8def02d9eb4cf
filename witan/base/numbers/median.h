// The median of a sample. With an even number of values there are two in the middle.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace witan {

// The value at `position` in ascending order. `values` must hold more than `position` values and no NaN.
inline double in_order(std::vector<double> values, size_t position) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(position);
  std::ranges::nth_element(values, at);
  return *at;
}

// The upper of two values in the middle. `values` must not be empty, nor hold a NaN.
inline double median(const std::vector<double>& values) {
  return in_order(values, values.size() / 2);
}

// The lower of two in the middle.
inline double lower_median(const std::vector<double>& values) {
  return in_order(values, (values.size() - 1) / 2);
}

}  // namespace witan
