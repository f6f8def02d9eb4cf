// AdamW: Adam with decoupled weight decay (Loshchilov & Hutter, 2019). The formula is in kernels/optimizer.h.
#pragma once

#include "witan/optim/optimizer.h"

namespace witan {

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned);

 private:
  void update_shard(Stream& stream, const Shard& shard, const Tensor& step) const override;

  kernels::AdamWArgs args_;
};

}  // namespace witan
