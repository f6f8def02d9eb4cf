// The value in the middle.
#pragma once

#include <vector>

namespace witan {

// Of two values in the middle the upper one. `values` must not be empty, nor hold a NaN.
double median(std::vector<double> values);
// Of two in the middle the lower one.
double lower_median(std::vector<double> values);

}  // namespace witan
