// AdamW: Adam with decoupled weight decay (Loshchilov & Hutter, 2019). The formula is in kernels/optimizer.h.
#pragma once

#include "witan/kernels/device_table.h"
#include "witan/optim/optimizer.h"

namespace witan {

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned);

 private:
  void update_shards(Stream& stream, const Tensor& step) override;

  kernels::AdamWArgs args_;
  kernels::DeviceTable table_;
};

}  // namespace witan
