// Rates measured at some sizes, and what lies between them.
#pragma once

#include <vector>

namespace witan {

// A value at every point of a grid. Between points it is linear in the logarithms of sizes and value, so that it is
// exact at the points, lies between its neighbours, and rises wherever they do; beyond the grid it is that of its
// border.
struct RateTable {
  std::vector<std::vector<double>> axes;  // sizes above 0, ascending, of each axis
  std::vector<double> values;             // above 0; the last axis is the innermost

  bool empty() const { return values.empty(); }
  // Whether it is what it claims to be: it may come from a file.
  bool valid() const;
  // `at`: a size for each axis, above 0. The table is valid and not empty.
  double of(const std::vector<double>& at) const;
  bool operator==(const RateTable&) const = default;
};

}  // namespace witan
