// Stochastic gradient descent with momentum. The formula is in kernels/optimizer.h.
#pragma once

#include "witan/optim/optimizer.h"

namespace witan {

class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned);

 private:
  void update_shards(Stream& stream, const Tensor& step) override;

  kernels::SgdArgs args_;
};

}  // namespace witan
