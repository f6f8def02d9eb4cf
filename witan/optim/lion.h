// Lion: the sign of an interpolated momentum, and decoupled weight decay (Chen et al., 2023, arXiv:2302.06675). The
// formula is in kernels/optimizer/optimizer.h.
#pragma once

#include "witan/optim/elementwise.h"

namespace witan {

class Lion final : public ElementwiseOptimizer {
 public:
  static const OptimizerTraits kTraits;

  Lion(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table, const Tensor& step,
                    int64_t rate) override;

  kernels::LionArgs args_;
};

}  // namespace witan
