// Curves for charts: thinned and smoothed.
#pragma once

#include <cstddef>
#include <vector>

namespace witan {

struct Point {
  double x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};
using Curve = std::vector<Point>;  // x increasing, y finite

// The least power of two that divides `count` things into at most `most` (>= 1) stretches of that length, the last one
// perhaps shorter. While a curve grows its stretches stay the same, until they are twice as long.
size_t stretch_length(size_t count, size_t most);

// Keeps at most `most` (>= 2) of the curve's points: the first ones, a fifth of `most`, which take as much of a
// logarithmic x axis as all others; the last one; and the lowest and highest of each of equally long stretches in
// between (stretch_length()), so that no spike is lost.
Curve downsample(const Curve& curve, size_t most);

// Exponential moving average over about `span` (>= 1) points, corrected for its start at zero (Adam's correction).
// If all points of the last 10 spans are equal, the average is their value: older points would change less than the
// four digits that charts show (e^-10), but would leave 1e-12 of a count that fell to 0.
Curve smooth(const Curve& curve, double span);

// The span at which a training curve with this many points is readable and still shows its turns, a round number that
// stays while the curve grows to about twice the points; 1: few points are not smoothed.
double smoothing_span(size_t points);

}  // namespace witan
