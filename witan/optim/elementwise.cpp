#include "witan/optim/elementwise.h"

#include <cassert>

namespace witan {

ElementwiseOptimizer::ElementwiseOptimizer(const ParamGroup& group, size_t index, Stream& stream,
                                           std::vector<ParameterShard> parameter_shards)
    : GroupOptimizer(group, index, stream, std::move(parameter_shards)),
      table_(stream, static_cast<int64_t>(shards().size()) * kernels::kUpdateColumns, MemoryTag::optimizer) {}

void ElementwiseOptimizer::update_shards(Stream& stream, const Tensor& step, int64_t rate) {
  if (shards().empty()) return;
  std::vector<kernels::UpdateItem> items;
  items.reserve(shards().size());
  for (const Shard& shard : shards()) {
    kernels::UpdateItem& item = items.emplace_back();
    item.tensors = {shard.value(), shard.remainder, {}, shard.gradient()};
    item.weight_decay = shard.weight_decay;
    assert(shard.state.size() <= item.tensors.state.size());
    for (size_t i = 0; i < shard.state.size(); ++i) item.tensors.state[i] = shard.state[i].tensor;
  }
  update_items(stream, items, table_.holding(stream, kernels::update_table(items)), step, rate);
}

}  // namespace witan
