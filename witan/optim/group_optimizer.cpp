#include "witan/optim/group_optimizer.h"

#include "witan/tensor/host.h"
#include "witan/tensor/trace_context.h"

namespace witan {

GroupOptimizer::GroupOptimizer(const ParamGroup& group, size_t index, Stream& stream,
                               std::vector<ParameterShard> parameter_shards)
    : rate_(kernels::step_value::learning_rate_of(static_cast<int64_t>(index))) {
  const std::vector<OptimizerStateSpec> kept = optimizer_traits(group.settings.optimizer).state(group.settings);
  for (const ParameterShard& part : parameter_shards) {
    const int64_t held = part.parameter->elements();
    require<ShapeError>(part.first >= 0 && part.elements >= 0 && part.first <= held - part.elements,
                        "optimizer: ", part.parameter->name(), " has no elements [", part.first, ", ",
                        part.first + part.elements, "): this rank holds ", part.parameter->shape());
    const TraceContextScope named(stream, part.parameter->name());
    Shard& shard = shards_.emplace_back();
    shard.part = part;
    shard.weight_decay = group.weight_decay(part.parameter->spec());
    const Tensor value = shard.value();
    if (is_split(value.dtype()))  // a master begins as the value that was drawn
      shard.remainder = stream.zeros(value.shape(), remainder_dtype(value.dtype()), MemoryTag::optimizer);
    for (const OptimizerStateSpec& state : kept) {
      ShardState place = state_of(state, group.settings, *part.parameter, part.first, part.elements);
      const int64_t elements = place.elements();
      Tensor tensor;
      if (elements > 0) tensor = stream.zeros({elements}, state.dtype_of(part.parameter->spec()), MemoryTag::optimizer);
      shard.state.push_back({state.prefix, std::move(tensor), std::move(place)});
    }
  }
}

void GroupOptimizer::visit(const std::function<void(const OptimizerTensor&)>& visitor) const {
  for (const Shard& shard : shards_) {
    const Parameter& parameter = *shard.part.parameter;
    const auto show = [&](const std::string& prefix, const ParameterSpec& global, const std::vector<Region>& regions,
                          const Tensor& tensor, const Tensor& remainder) {
      int64_t begin = 0;
      for (const Region& region : regions) {
        const auto piece = [&](const Tensor& whole) { return whole.narrow(0, begin, region.elements()); };
        visitor({prefix + "/" + parameter.name(), piece(tensor), global, region,
                 remainder.defined() ? piece(remainder) : Tensor()});
        begin += region.elements();
      }
    };
    if (shard.remainder.defined())
      show("master", parameter.spec(),
           parameter.region().slice(shard.part.first, shard.part.first + shard.part.elements), shard.value(),
           shard.remainder);
    for (const State& state : shard.state)
      if (state.tensor.defined()) show(state.prefix, state.place.global, state.place.regions, state.tensor, {});
  }
}

}  // namespace witan
