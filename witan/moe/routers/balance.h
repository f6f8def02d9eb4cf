// The losses that a router learns from besides the model's own: of its balance, and of its logits' size.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "witan/moe/config.h"
#include "witan/moe/statistics.h"

namespace witan {

// Names of the losses that ops::route() records; mathematics in kernels/moe/router.h. Of several losses of balance the
// first in the order of BalanceLoss::Over has this name, and each other that of its tag.
inline constexpr const char* kBalanceLoss = "load_balancing_loss";  // unscaled: 1 when the load is even
inline constexpr const char* kZLoss = "z_loss";                     // unscaled

// All, with their coefficients. Without a loss of balance that over a micro-batch is recorded, with coefficient 0.
std::vector<RouterStatistic> declare_losses(const MoeConfig& config);

// What the load of a micro-batch's tokens is balanced over, in the order of the records.
struct Balance {
  std::vector<BalanceLoss::Over> over = {BalanceLoss::Over::micro_batch};
  int64_t sequences = 1;  // of as many tokens each, one after the other
  // The load that a loss over the global batch balances, [E] int64, given a micro-batch's assignments [E]: of all its
  // tokens, and of those of this part. None: that of all its tokens.
  std::function<Tensor(const Tensor& of_all, const Tensor& of_part)> global_load = {};

  bool is(BalanceLoss::Over loss) const;  // whether it is among them
  bool by_sequence() const;               // whether one is over sequences, and there are several
  std::string name_of(size_t i) const;    // of the loss over[i]
};
// That of a micro-batch of so many sequences.
Balance balance_of(const MoeConfig& config, int64_t sequences);

}  // namespace witan
