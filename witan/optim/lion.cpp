#include "witan/optim/lion.h"

namespace witan {

// Of float32 the gradient is read, and value and momentum are read and written.
const OptimizerTraits Lion::kTraits = {
    .name = "lion",
    .needs = ShardBy::elements,
    .state = [](const OptimizerSettings&) { return std::vector<OptimizerStateSpec>{{"lion.m"}}; },
    .cost = [](const OptimizerSettings&, int64_t rows,
               int64_t columns) { return 20.0 * static_cast<double>(rows) * static_cast<double>(columns); },
    .make = [](const ParamGroup& group, size_t index, Stream& stream,
               std::vector<ParameterShard> parameter_shards) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Lion>(group, index, stream, std::move(parameter_shards));
    }};

Lion::Lion(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards)
    : ElementwiseOptimizer(group, index, stream, std::move(parameter_shards)),
      args_{group.settings.lion_beta1, group.settings.lion_beta2} {}

void Lion::update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table,
                        const Tensor& step, int64_t rate) {
  args_.rate = rate;
  kernels::lion_all(stream, items, table, step, args_);
}

}  // namespace witan
