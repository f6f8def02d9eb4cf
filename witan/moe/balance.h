// The losses that a router learns from besides the model's own: of its balance, and of its logits' size.
#pragma once

#include "witan/moe/config.h"
#include "witan/moe/statistics.h"

namespace witan {

// Names of the losses that ops::route() records; mathematics in kernels/router.h.
inline constexpr const char* kBalanceLoss = "load_balancing_loss";  // unscaled: 1 when the load is even
inline constexpr const char* kZLoss = "z_loss";                     // unscaled

// Both, with their coefficients.
std::vector<RouterStatistic> declare_losses(const MoeConfig& config);
// Over how many runs of tokens the load is balanced, of a micro-batch of so many sequences.
int64_t balanced_runs(const MoeConfig& config, int64_t sequences);

}  // namespace witan
