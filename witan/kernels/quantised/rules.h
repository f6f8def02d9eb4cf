// The numbers that 4-bit codes stand for before they are scaled; the encoder and both twins read them here.
#pragma once

#include <array>

#include "witan/base/numbers/float4.h"
#include "witan/kernels/quantised/quantised.h"

namespace witan::kernels::rules {

// Quantiles of the normal distribution, divided by the largest; exactly 0 is one of them (Dettmers et al., appendix E).
inline constexpr std::array<float, 16> kNormalFloat4{-1.0F,
                                                     -0.6961928009986877F,
                                                     -0.5250730514526367F,
                                                     -0.39491748809814453F,
                                                     -0.28444138169288635F,
                                                     -0.18477343022823334F,
                                                     -0.09105003625154495F,
                                                     0.0F,
                                                     0.07958029955625534F,
                                                     0.16093020141124725F,
                                                     0.24611230194568634F,
                                                     0.33791524171829224F,
                                                     0.44070982933044434F,
                                                     0.5626170039176941F,
                                                     0.7229568362236023F,
                                                     1.0F};

template <WeightFormat kFormat>
inline constexpr std::array<float, 16> kCodeValues{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
template <>
inline constexpr std::array<float, 16> kCodeValues<WeightFormat::nf4> = kNormalFloat4;
template <>
inline constexpr std::array<float, 16> kCodeValues<WeightFormat::mxfp4> = e2m1::kValues;

}  // namespace witan::kernels::rules
