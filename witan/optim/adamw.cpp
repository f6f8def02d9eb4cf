#include "witan/optim/adamw.h"

namespace witan {

AdamW::AdamW(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned)
    : Optimizer(config, stream, std::move(owned), {"adam.m", "adam.v"}),
      args_{config.adam_beta1, config.adam_beta2, config.adam_eps, config.weight_decay} {}

void AdamW::update_shard(Stream& stream, const Shard& shard, const Tensor& step) const {
  kernels::AdamWArgs args = args_;
  args.weight_decay = shard.weight_decay;
  const Tensor &m = shard.state[0].second, &v = shard.state[1].second;
  kernels::adamw(stream, {shard.value(), shard.master, m, v, shard.gradient()}, step, args);
}

}  // namespace witan
