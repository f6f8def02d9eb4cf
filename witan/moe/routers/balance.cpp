#include "witan/moe/routers/balance.h"

#include <algorithm>

namespace witan {

bool Balance::is(BalanceLoss::Over loss) const {
  return std::ranges::find(over, loss) != over.end();
}

bool Balance::by_sequence() const {
  return sequences > 1 && is(BalanceLoss::Over::sequence);
}

std::string Balance::name_of(size_t i) const {
  return i == 0 ? kBalanceLoss : BalanceLoss{over[i], 0}.tag();
}

Balance balance_of(const MoeConfig& config, int64_t sequences) {
  Balance balance{{}, sequences};
  for (const BalanceLoss& loss : config.balance_losses()) balance.over.push_back(loss.over);
  if (balance.over.empty()) balance.over.push_back(BalanceLoss::Over::micro_batch);
  return balance;
}

std::vector<RouterStatistic> declare_losses(const MoeConfig& config) {
  std::vector<BalanceLoss> losses = config.balance_losses();
  if (losses.empty()) losses.push_back({BalanceLoss::Over::micro_batch, 0});
  const Balance balance = balance_of(config, 1);
  std::vector<RouterStatistic> all;
  for (size_t i = 0; i < losses.size(); ++i)
    all.push_back({.name = balance.name_of(i), .tag = losses[i].tag(), .loss_coefficient = losses[i].coefficient});
  all.push_back({.name = kZLoss, .loss_coefficient = config.moe_z_loss_coeff});
  return all;
}

}  // namespace witan
