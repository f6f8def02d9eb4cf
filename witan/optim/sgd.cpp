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

void Sgd::update_shards(Stream& stream, const Tensor& step, int64_t rate) {
  for (const Shard& shard : shards()) {
    const kernels::SgdArgs args{momentum_, shard.weight_decay, rate};
    const Tensor momentum = shard.state.empty() ? Tensor() : shard.state[0].tensor;
    kernels::sgd(stream, {shard.value(), shard.remainder, momentum, shard.gradient()}, step, args);
  }
}

}  // namespace witan
