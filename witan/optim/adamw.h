// AdamW: Adam with decoupled weight decay (Loshchilov & Hutter, 2019). The formula is in kernels/optimizer/optimizer.h.
// Each moment may be kept in bfloat16, with half the memory.
#pragma once

#include "witan/optim/elementwise.h"

namespace witan {

class AdamW final : public ElementwiseOptimizer {
 public:
  static const OptimizerTraits kTraits;

  AdamW(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table, const Tensor& step,
                    int64_t rate) override;

  kernels::AdamWArgs args_;
};

}  // namespace witan
