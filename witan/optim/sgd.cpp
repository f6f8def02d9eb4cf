#include "witan/optim/sgd.h"

namespace witan {

Sgd::Sgd(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned)
    : Optimizer(config, stream, std::move(owned),
                config.sgd_momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"sgd.momentum"}),
      args_{config.sgd_momentum, config.weight_decay} {}

void Sgd::update_shards(Stream& stream, const Tensor& step) {
  for (const Shard& shard : shards()) {
    const kernels::SgdArgs args{args_.momentum, shard.weight_decay};
    const Tensor momentum = shard.state.empty() ? Tensor() : shard.state[0].second;
    kernels::sgd(stream, {shard.value(), shard.remainder, momentum, shard.gradient()}, step, args);
  }
}

}  // namespace witan
