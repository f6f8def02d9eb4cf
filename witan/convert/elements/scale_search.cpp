#include "witan/convert/elements/scale_search.h"

#include <array>
#include <cmath>

namespace witan {
namespace {

// Successive candidates change the range by a tenth of a level.
constexpr int kCandidates = 10;  // on either side
constexpr float kStep = 0.1F;

using Codes = std::array<float, kLargestAffineGroup>;

// A sum in eight lanes, which vectorises and has a fixed order.
constexpr size_t kLanes = 8;
struct LaneSum {
  std::array<float, kLanes> parts{};

  float total() const {
    return ((parts[0] + parts[4]) + (parts[2] + parts[6])) + ((parts[1] + parts[5]) + (parts[3] + parts[7]));
  }
};
// Calls add(i, lane) for every value of a group. The group's size is a multiple of the number of lanes.
template <class Add>
void for_lanes(size_t count, const Add& add) {
  for (size_t i = 0; i < count; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
}

// The scale and the minimum that fit the codes best.
AffineScale fit(std::span<const float> values, const float* weights, const Codes& codes) {
  LaneSum sum_w, sum_wq, sum_wqq, sum_wx, sum_wxq;
  for_lanes(values.size(), [&](size_t i, size_t lane) {
    const float weight = weights[i], code = codes[i], value = values[i];
    sum_w.parts[lane] += weight;
    sum_wq.parts[lane] += weight * code;
    sum_wqq.parts[lane] += weight * code * code;
    sum_wx.parts[lane] += weight * value;
    sum_wxq.parts[lane] += weight * value * code;
  });
  const float w = sum_w.total(), wq = sum_wq.total(), wqq = sum_wqq.total(), wx = sum_wx.total(), wxq = sum_wxq.total();
  const float determinant = w * wqq - wq * wq;
  if (!(determinant > 0)) return {};
  const AffineScale best{(w * wxq - wx * wq) / determinant, (wq * wxq - wqq * wx) / determinant};
  return best.minimum >= 0 ? best : AffineScale{wxq / wqq, 0};
}

}  // namespace

void importance_of(std::span<const float> values, float* weights) {
  float squares = 0;
  for (const float value : values) squares += value * value;
  const float root = std::sqrt(squares / static_cast<float>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) weights[i] = root + std::fabs(values[i]);
}

float symmetric_scale(std::span<const float> values, const float* weights, int low, int high, ScaleSign sign) {
  float largest = 0;
  for (const float value : values)
    if (std::fabs(value) > std::fabs(largest)) largest = value;
  if (largest == 0) return 0;
  if (sign == ScaleSign::positive) largest = -std::fabs(largest);
  float best = 0, best_gain = 0;
  for (int candidate = -kCandidates; candidate <= kCandidates; ++candidate) {
    const float inverse = (static_cast<float>(low) - kStep * static_cast<float>(candidate)) / largest;
    LaneSum sum_wqq, sum_wxq;
    for_lanes(values.size(), [&](size_t i, size_t lane) {
      const auto code = static_cast<float>(nearest(values[i] * inverse, low, high));
      sum_wqq.parts[lane] += weights[i] * code * code;
      sum_wxq.parts[lane] += weights[i] * values[i] * code;
    });
    const float wqq = sum_wqq.total(), wxq = sum_wxq.total();
    // The best scale wxq / wqq takes wxq^2 / wqq off the squares of the values.
    if (wqq > 0 && wxq * wxq > best_gain * wqq) {
      best = wxq / wqq;
      best_gain = wxq * best;
    }
  }
  return best;
}

float symmetric_error(std::span<const float> values, const float* weights, float scale, int low, int high) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  LaneSum sum;
  for_lanes(values.size(), [&](size_t i, size_t lane) {
    const float error = scale * static_cast<float>(nearest(values[i] * inverse, low, high)) - values[i];
    sum.parts[lane] += weights[i] * error * error;
  });
  return sum.total();
}

AffineScale affine_scale(std::span<const float> values, const float* weights, int levels) {
  const auto [least, most] = std::ranges::minmax(values);
  const float low = std::min(least, 0.0F);
  if (most <= low) return {0, -low};
  AffineScale best{(most - low) / static_cast<float>(levels), -low};
  float best_error = affine_error(values, weights, best, levels);
  for (int candidate = -kCandidates; candidate <= kCandidates; ++candidate) {
    const float inverse = (static_cast<float>(levels) + kStep * static_cast<float>(candidate)) / (most - low);
    Codes codes;
    for (size_t i = 0; i < values.size(); ++i)
      codes[i] = static_cast<float>(nearest((values[i] - low) * inverse, 0, levels));
    const AffineScale by = fit(values, weights, codes);
    if (!(by.scale > 0)) continue;
    const float error = affine_error(values, weights, by, levels);
    if (error < best_error) {
      best = by;
      best_error = error;
    }
  }
  return best;
}

float affine_error(std::span<const float> values, const float* weights, AffineScale by, int levels) {
  const float inverse = by.scale > 0 ? 1 / by.scale : 0;
  LaneSum sum;
  for_lanes(values.size(), [&](size_t i, size_t lane) {
    const auto code = static_cast<float>(nearest((values[i] + by.minimum) * inverse, 0, levels));
    const float error = by.scale * code - by.minimum - values[i];
    sum.parts[lane] += weights[i] * error * error;
  });
  return sum.total();
}

}  // namespace witan
