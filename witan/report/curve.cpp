#include "witan/report/curve.h"

#include <algorithm>

namespace witan {

Curve downsample(const Curve& curve, size_t most) {
  if (curve.size() <= most) return curve;
  const size_t inner = curve.size() - 2, stretches = (most - 2) / 2;
  const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
  Curve kept{curve.front()};
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = curve.begin() + 1 + static_cast<ptrdiff_t>(i * inner / stretches);
    const auto end = curve.begin() + 1 + static_cast<ptrdiff_t>((i + 1) * inner / stretches);
    auto [low, high] = std::minmax_element(begin, end, by_y);
    if (low > high) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  kept.push_back(curve.back());
  return kept;
}

Curve smooth(const Curve& curve, double span) {
  constexpr double kForgotten = 10;  // spans
  const double keep = 1 - 1 / std::max(span, 1.0);
  double average = 0, weight = 0, before = 0, equal = 0;
  Curve smoothed;
  smoothed.reserve(curve.size());
  for (const Point& p : curve) {
    average = keep * average + (1 - keep) * p.y;
    weight = keep * weight + (1 - keep);
    equal = p.y == before ? equal + 1 : 1;
    if (equal >= kForgotten * span) average = weight * p.y;
    before = p.y;
    smoothed.push_back({p.x, equal >= kForgotten * span ? p.y : average / weight});
  }
  return smoothed;
}

double smoothing_span(size_t points) {
  constexpr size_t kFew = 20;  // which are read one by one
  if (points < kFew) return 1;
  return std::clamp(static_cast<double>(points) / 100, 5.0, 1000.0);
}

}  // namespace witan
