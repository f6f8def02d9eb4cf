// Stochastic gradient descent with momentum. The formula is in kernels/optimizer.h.
#pragma once

#include "witan/optim/group_optimizer.h"

namespace witan {

class Sgd final : public GroupOptimizer {
 public:
  static const OptimizerTraits kTraits;

  Sgd(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards)
      : GroupOptimizer(group, index, stream, std::move(parameter_shards)), momentum_(group.settings.sgd_momentum) {}

 private:
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) override;

  double momentum_;
};

}  // namespace witan
