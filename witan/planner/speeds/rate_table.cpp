#include "witan/planner/speeds/rate_table.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace witan {
namespace {

constexpr size_t kMostValues = 4096;

bool is_size(double value) {
  return std::isfinite(value) && value > 0;
}

// Where a size lies on an axis: after its index-th point, by a share of the way to the next one.
struct Place {
  size_t index = 0;
  double share = 0;
};

Place place_on(const std::vector<double>& axis, double size) {
  if (size <= axis.front() || axis.size() == 1) return {0, 0};
  if (size >= axis.back()) return {axis.size() - 2, 1};
  const auto next = std::ranges::upper_bound(axis, size);
  const auto index = static_cast<size_t>(next - axis.begin()) - 1;
  return {index, std::log(size / axis[index]) / std::log(*next / axis[index])};
}

}  // namespace

bool RateTable::valid() const {
  size_t points = 1;
  for (const auto& axis : axes) {
    if (axis.empty() || axis.size() > kMostValues || !std::ranges::all_of(axis, is_size)) return false;
    if (std::ranges::adjacent_find(axis, [](double a, double b) { return a >= b; }) != axis.end()) return false;
    points *= axis.size();
    if (points > kMostValues) return false;
  }
  return !axes.empty() && values.size() == points && std::ranges::all_of(values, is_size);
}

double RateTable::of(const std::vector<double>& at) const {
  assert(at.size() == axes.size() && !empty());
  std::vector<Place> places;
  for (size_t axis = 0; axis < axes.size(); ++axis) places.push_back(place_on(axes[axis], at[axis]));
  double sum = 0;
  for (size_t corner = 0; corner < size_t{1} << axes.size(); ++corner) {
    size_t index = 0;
    double weight = 1;
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      const bool upper = (corner >> axis & 1) != 0;
      weight *= upper ? places[axis].share : 1 - places[axis].share;
      index = index * axes[axis].size() + places[axis].index + (upper ? 1 : 0);
      if (weight == 0) break;  // it may lie beyond the axis
    }
    if (weight > 0) sum += weight * std::log(values[index]);
  }
  return std::exp(sum);
}

}  // namespace witan
