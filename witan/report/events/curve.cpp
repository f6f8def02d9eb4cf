#include "witan/report/events/curve.h"

#include <algorithm>

namespace witan {

size_t stretch_length(size_t count, size_t most) {
  size_t length = 1;
  while ((count + length - 1) / length > most) length *= 2;
  return length;
}

Curve downsample(const Curve& curve, size_t most) {
  if (curve.size() <= most) return curve;
  const size_t head = std::max<size_t>(most / 5, 1);
  Curve kept(curve.begin(), curve.begin() + static_cast<ptrdiff_t>(head));
  const size_t stretches = (most - head - 1) / 2, end = curve.size() - 1;
  const size_t length = stretches > 0 ? stretch_length(end - head, stretches) : end;
  const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
  for (size_t begin = head; stretches > 0 && begin < end; begin += length) {
    const auto first = curve.begin() + static_cast<ptrdiff_t>(begin);
    auto [low, high] = std::minmax_element(first, first + static_cast<ptrdiff_t>(std::min(length, end - begin)), by_y);
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
  double span = 5;
  for (const double longer : {10, 20, 50, 100, 200, 500, 1000})
    if (longer <= static_cast<double>(points) / 100) span = longer;
  return span;
}

}  // namespace witan
