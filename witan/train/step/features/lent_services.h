// Features that only lend modules of the model a service (nn/model_services.h).
#pragma once

#include <algorithm>
#include <memory>

#include "witan/moe/routers/balance.h"
#include "witan/parallel/groups.h"
#include "witan/train/config/config.h"
#include "witan/train/step/step_feature.h"

namespace witan {

// Streams beside the main one, on which ranks exchange rows while they compute.
class SideStreams : public StepFeature {
 public:
  // The stream and the groups must outlive it.
  SideStreams(Stream& stream, const Groups& groups, const RunConfig& config);

  void offer(ModelServices& services) override;

 private:
  Stream& main_;
  const Groups& groups_;
  std::unique_ptr<Stream> tensor_;  // null: no computation overlaps with exchanges of the tensor axis
  std::unique_ptr<Stream> expert_;  // null: no computation overlaps with the dispatch to experts
};

// The load of experts over the global batch so far, for losses that balance it (moe/routers/balance.h).
class GlobalBatchLoad : public StepFeature {
 public:
  // Whether some loss balances it.
  static bool counts(const MoeConfig& moe) {
    if (moe.num_experts == 0 || moe.balances_last_load()) return false;
    const auto losses = moe.balance_losses();
    return std::ranges::find(losses, BalanceLoss::Over::global_batch, &BalanceLoss::over) != losses.end();
  }

  // `routers`: of this rank. The groups must outlive it.
  GlobalBatchLoad(Stream& stream, const Groups& groups, const RunConfig& config, int64_t routers)
      : load_(stream, routers, config.model.moe.num_experts, config.micro_batches() / groups.layout().data_ranks(),
              groups.over(groups.layout().data_axes())) {}

  void offer(ModelServices& services) override { services.global_load = &load_; }
  void allocate(const StepShape& shape) override { load_.expect(shape.micro_batches); }

 private:
  GlobalLoad load_;
};

}  // namespace witan
