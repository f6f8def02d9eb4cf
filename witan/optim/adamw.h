// AdamW: Adam with decoupled weight decay (Loshchilov & Hutter, 2019). The formula is in kernels/optimizer.h.
#pragma once

#include "witan/kernels/device_table.h"
#include "witan/optim/group_optimizer.h"

namespace witan {

class AdamW final : public GroupOptimizer {
 public:
  static const OptimizerTraits kTraits;

  AdamW(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) override;

  kernels::AdamWArgs args_;
  kernels::DeviceTable table_;
};

}  // namespace witan
