#include "witan/optim/ademamix.h"

namespace witan {

// Of float32 the gradient is read, and value and three averages are read and written.
const OptimizerTraits AdEMAMix::kTraits = {
    .name = "ademamix",
    .needs = ShardBy::elements,
    .state =
        [](const OptimizerSettings&) {
          return std::vector<OptimizerStateSpec>{{"ademamix.m"}, {"ademamix.slow"}, {"ademamix.v"}};
        },
    .cost = [](const OptimizerSettings&, int64_t rows,
               int64_t columns) { return 36.0 * static_cast<double>(rows) * static_cast<double>(columns); },
    .make = [](const ParamGroup& group, size_t index, Stream& stream,
               std::vector<ParameterShard> parameter_shards) -> std::unique_ptr<Optimizer> {
      return std::make_unique<AdEMAMix>(group, index, stream, std::move(parameter_shards));
    }};

AdEMAMix::AdEMAMix(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards)
    : ElementwiseOptimizer(group, index, stream, std::move(parameter_shards)),
      args_{group.settings.adam_beta1,     group.settings.adam_beta2,
            group.settings.ademamix_beta3, group.settings.ademamix_alpha,
            group.settings.adam_eps,       static_cast<double>(group.settings.ademamix_warmup_iters)} {}

void AdEMAMix::update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table,
                            const Tensor& step, int64_t rate) {
  args_.rate = rate;
  kernels::ademamix_all(stream, items, table, step, args_);
}

}  // namespace witan
