// Stochastic gradient descent with momentum. The formula is in kernels/optimizer/optimizer.h.
#pragma once

#include "witan/optim/elementwise.h"

namespace witan {

class Sgd final : public ElementwiseOptimizer {
 public:
  static const OptimizerTraits kTraits;

  Sgd(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table, const Tensor& step,
                    int64_t rate) override;

  kernels::SgdArgs args_;
};

}  // namespace witan
