// The moments of an activation's elements, for statistics of training: one pass over it leaves four numbers on the
// device.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

namespace activation_moment {
inline constexpr int64_t square_sum = 0;
inline constexpr int64_t largest = 1;  // magnitude; NaN where there is one
inline constexpr int64_t zeros = 2;    // elements that are exactly 0
inline constexpr int64_t elements = 3;
}  // namespace activation_moment
inline constexpr int64_t kActivationMoments = 4;

// out = the moments of y[i] = x[i] + added[i], rounded to x's dtype as a residual stream is, or of x itself where
// `added` is undefined. Formed in float64, in an order of sums that the number of elements alone decides.
// x, added [.., D] of one floating dtype, contiguous; may be empty   out [kActivationMoments] float64
// sequence_ids int32, one for each row of D elements, or undefined: rows where it is negative are padding
// (kernels/moe/router.h) and are left out. On the CPU their number then changes no bit.
void activation_moments(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& added,
                        const Tensor& sequence_ids = {});
WITAN_KERNEL_TWINS(activation_moments)

}  // namespace witan::kernels
