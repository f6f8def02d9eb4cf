// The Zipf law whose busiest expert has a given load (moe_router_selection = "zipf").
#pragma once

#include <cstdint>

namespace witan {

// The exponent s with which expert 0's load is `imbalance` times the mean, where each token's K of E experts arrive
// first at rates (e + 1)^-s (kernels/moe/selection.h). imbalance in [1, E / K]; one that only an exponent above
// 16 would reach gets 16, which is as uneven as choices become.
double zipf_exponent(int64_t E, int64_t K, double imbalance);

}  // namespace witan
