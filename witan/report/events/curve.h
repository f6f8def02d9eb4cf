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

// At most `most` (>= 2) of the curve's own points: the first fifth of `most`, which a logarithmic x axis shows as wide
// as all others, the last, and the lowest and the highest of each of equally long stretches between them
// (stretch_length()), so that no spike is lost.
Curve downsample(const Curve& curve, size_t most);

// Exponential moving average over about `span` (>= 1) points, corrected for its start at zero (Adam's correction).
// Where the last 10 spans' points are equal it is their value: older ones would add less than the four digits that
// charts show (e^-10), but leave a count that fell to 0 at 1e-12.
Curve smooth(const Curve& curve, double span);

// The span at which a training curve with this many points is readable and still shows its turns, a round number that
// stays while the curve grows to about twice the points; 1: few points are not smoothed.
double smoothing_span(size_t points);

}  // namespace witan
