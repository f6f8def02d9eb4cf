#include "witan/moe/balance.h"

namespace witan {

std::vector<RouterStatistic> declare_losses(const MoeConfig& config) {
  return {{.name = kBalanceLoss, .tag = config.balance_loss_name(), .loss_coefficient = config.balance_weight()},
          {.name = kZLoss, .loss_coefficient = config.moe_z_loss_coeff}};
}

int64_t balanced_runs(const MoeConfig& config, int64_t sequences) {
  return config.balances_sequences() ? sequences : 1;
}

}  // namespace witan
