#include "witan/optim/sgd.h"

namespace witan {

// Of float32 the gradient is read, and value and momentum are read and written.
const OptimizerTraits Sgd::kTraits = {
    .name = "sgd",
    .needs = ShardBy::elements,
    .state =
        [](const OptimizerSettings& settings) {
          return settings.sgd_momentum == 0 ? std::vector<OptimizerStateSpec>{}
                                            : std::vector<OptimizerStateSpec>{{"sgd.momentum"}};
        },
    .cost =
        [](const OptimizerSettings& settings, int64_t rows, int64_t columns) {
          return (settings.sgd_momentum == 0 ? 12.0 : 20.0) * static_cast<double>(rows) * static_cast<double>(columns);
        },
    .make = [](const ParamGroup& group, size_t index, Stream& stream,
               std::vector<ParameterShard> parameter_shards) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Sgd>(group, index, stream, std::move(parameter_shards));
    }};

Sgd::Sgd(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards)
    : ElementwiseOptimizer(group, index, stream, std::move(parameter_shards)), args_{group.settings.sgd_momentum} {}

void Sgd::update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table,
                       const Tensor& step, int64_t rate) {
  args_.rate = rate;
  kernels::sgd_all(stream, items, table, step, args_);
}

}  // namespace witan
