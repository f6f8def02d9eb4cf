#include "witan/optim/adamw.h"

namespace witan {

// Of float32 the gradient is read, and value and moments are read and written.
const OptimizerTraits AdamW::kTraits = {
    .name = "adam",
    .needs = ShardBy::elements,
    .state =
        [](const OptimizerSettings&) {
          return std::vector<OptimizerStateSpec>{{"adam.m"}, {"adam.v"}};
        },
    .cost = [](const OptimizerSettings&, int64_t rows,
               int64_t columns) { return 28.0 * static_cast<double>(rows) * static_cast<double>(columns); },
    .make = [](const ParamGroup& group, size_t index, Stream& stream,
               std::vector<ParameterShard> parameter_shards) -> std::unique_ptr<Optimizer> {
      return std::make_unique<AdamW>(group, index, stream, std::move(parameter_shards));
    }};

AdamW::AdamW(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards)
    : GroupOptimizer(group, index, stream, std::move(parameter_shards)),
      args_{group.settings.adam_beta1, group.settings.adam_beta2, group.settings.adam_eps, group.settings.weight_decay},
      table_(stream, static_cast<int64_t>(shards().size()) * kernels::kAdamWColumns, MemoryTag::optimizer) {}

void AdamW::update_shards(Stream& stream, const Tensor& step, int64_t rate) {
  args_.rate = rate;
  std::vector<kernels::AdamWItem> items;
  items.reserve(shards().size());
  for (const Shard& shard : shards()) {
    const Tensor &m = shard.state[0].tensor, &v = shard.state[1].tensor;
    items.push_back({{shard.value(), shard.remainder, m, v, shard.gradient()}, shard.weight_decay});
  }
  kernels::adamw_all(stream, items, table_.holding(stream, kernels::adamw_table(items)), step, args_);
}

}  // namespace witan
