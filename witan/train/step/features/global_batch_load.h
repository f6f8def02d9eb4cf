// The load of experts over the global batch so far, for losses that balance it (moe/routers/balance.h).
#pragma once

#include <algorithm>

#include "witan/moe/routers/balance.h"
#include "witan/parallel/groups.h"
#include "witan/train/config/config.h"
#include "witan/train/step/step_feature.h"

namespace witan {

class GlobalBatchLoad : public StepFeature {
 public:
  // Whether some loss balances it.
  static bool counts(const MoeConfig& moe) {
    if (moe.num_experts == 0 || moe.balances_last_load()) return false;
    const auto losses = moe.balance_losses();
    return std::ranges::find(losses, BalanceLoss::Over::global_batch, &BalanceLoss::over) != losses.end();
  }

  // Of so many routers of this rank. The groups must outlive it.
  GlobalBatchLoad(Stream& stream, const Groups& groups, const RunConfig& config, int64_t routers)
      : load_(stream, routers, config.model.moe.num_experts, config.micro_batches() / groups.layout().data_ranks(),
              groups.over(groups.layout().data_axes())) {}

  void offer(ModelServices& services) override { services.global_load = &load_; }
  void allocate(const StepShape& shape) override { load_.expect(shape.micro_batches); }

 private:
  GlobalLoad load_;
};

}  // namespace witan
