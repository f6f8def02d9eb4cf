#include "witan/optim/adamw.h"

namespace witan {

AdamW::AdamW(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned)
    : Optimizer(config, stream, std::move(owned), {"adam.m", "adam.v"}),
      args_{config.adam_beta1, config.adam_beta2, config.adam_eps, config.weight_decay},
      table_(stream, static_cast<int64_t>(shards().size()) * kernels::kAdamWColumns, MemoryTag::optimizer) {}

void AdamW::update_shards(Stream& stream, const Tensor& step) {
  std::vector<kernels::AdamWItem> items;
  items.reserve(shards().size());
  for (const Shard& shard : shards()) {
    const Tensor &m = shard.state[0].second, &v = shard.state[1].second;
    items.push_back({{shard.value(), shard.remainder, m, v, shard.gradient()}, shard.weight_decay});
  }
  kernels::adamw_all(stream, items, table_.holding(stream, kernels::adamw_table(items)), step, args_);
}

}  // namespace witan
