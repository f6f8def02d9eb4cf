// Searches the scale of a group of quantised values by weighted least squares: values are rounded with each of several
// candidate scales, the best scale for that rounding is computed, and the one with the smallest error is taken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace witan {

// The size of a group is a multiple of 8; a group with a minimum has at most this many values.
inline constexpr int kLargestAffineGroup = 32;

// Computes the weight of each value's squared error. It grows with the value's magnitude relative to the group's root
// mean square, since outputs depend more on large weights. Writes values.size() weights.
void importance_of(std::span<const float> values, float* weights);

// The nearest integer in [low, high].
inline int nearest(float value, int low, int high) {
  const float within = std::min(std::max(static_cast<float>(low), value), static_cast<float>(high));
  return static_cast<int>(within + (within < 0 ? -0.5F : 0.5F));
}

// A value is scale * code, with code in [low, high] and low = -(high + 1). A negative scale lets the value of the
// largest magnitude have the code `low` whatever its sign; not every format allows negative scales.
enum class ScaleSign : bool { any, positive };
float symmetric_scale(std::span<const float> values, const float* weights, int low, int high,
                      ScaleSign sign = ScaleSign::any);

// The weighted squared error of rounding to codes of this scale.
float symmetric_error(std::span<const float> values, const float* weights, float scale, int low, int high);

// A value is scale * code - minimum, with code in [0, levels] and neither scale nor minimum negative.
struct AffineScale {
  float scale = 0, minimum = 0;

  int code(float value, int levels) const { return scale > 0 ? nearest((value + minimum) / scale, 0, levels) : 0; }
};
AffineScale affine_scale(std::span<const float> values, const float* weights, int levels);
float affine_error(std::span<const float> values, const float* weights, AffineScale by, int levels);

}  // namespace witan
