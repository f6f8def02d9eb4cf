// Scales of a group of values in few bits, by weighted least squares: for each of several candidate scales the values
// are rounded, the scale that fits these roundings best is solved for, and the one with the smallest error is taken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace witan {

// Groups have a multiple of 8 values, with a minimum of their own at most kLargestAffineGroup.
inline constexpr int kLargestAffineGroup = 32;

// How much the error of each value counts: its magnitude beside the group's root mean square, since outputs depend
// more on large weights. Writes values.size() weights.
void importance_of(std::span<const float> values, float* weights);

// The nearest whole number in [low, high].
inline int nearest(float value, int low, int high) {
  const float within = std::min(std::max(static_cast<float>(low), value), static_cast<float>(high));
  return static_cast<int>(within + (within < 0 ? -0.5F : 0.5F));
}

// A value is scale * code, code in [low, high], where low = -(high + 1). A scale of either sign may give the value of
// the largest magnitude the code `low`, which reaches further than `high`; not all formats have negative ones.
enum class ScaleSign : bool { any, positive };
float symmetric_scale(std::span<const float> values, const float* weights, int low, int high,
                      ScaleSign sign = ScaleSign::any);

// The weighted squared error of rounding to codes of this scale.
float symmetric_error(std::span<const float> values, const float* weights, float scale, int low, int high);

// A value is scale * code - minimum, code in [0, levels], scale and minimum not negative.
struct AffineScale {
  float scale = 0, minimum = 0;

  int code(float value, int levels) const { return scale > 0 ? nearest((value + minimum) / scale, 0, levels) : 0; }
};
AffineScale affine_scale(std::span<const float> values, const float* weights, int levels);
float affine_error(std::span<const float> values, const float* weights, AffineScale by, int levels);

}  // namespace witan
