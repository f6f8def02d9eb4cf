// Numbers for people: the sign of a NaN says nothing.
#pragma once

#include <cmath>

namespace witan {

// The value, or NaN without its sign, as Python writes every NaN.
inline double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

}  // namespace witan
