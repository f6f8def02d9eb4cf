// AdEMAMix: AdamW with a second, slow average of the gradients (Pagliardini et al., 2024, arXiv:2409.03137). The
// formula is in kernels/optimizer/optimizer.h.
#pragma once

#include "witan/optim/elementwise.h"

namespace witan {

class AdEMAMix final : public ElementwiseOptimizer {
 public:
  static const OptimizerTraits kTraits;

  AdEMAMix(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table, const Tensor& step,
                    int64_t rate) override;

  kernels::AdEMAMixArgs args_;
};

}  // namespace witan
