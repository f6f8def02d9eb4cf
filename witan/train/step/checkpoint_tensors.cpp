#include "witan/train/step/checkpoint_tensors.h"

namespace witan {
namespace {

// The shard of a value, region by region.
void add_value(std::vector<StateTensor>& tensors, const Parameter& parameter, const Layout& layout, int rank) {
  const ParameterSpec& spec = parameter.spec();
  const Axes owners = layout.shards_values(spec.expert) ? layout.sharding_axes(spec.expert) : Axes{};
  const bool writes = !spec.copy && layout.holds_first(spec, rank, owners);
  const Tensor shard = parameter.value_shard();
  int64_t done = 0;
  for (const Region& region :
       parameter.region().slice(parameter.shard_first(), parameter.shard_first() + shard.elements())) {
    tensors.push_back(
        {parameter.name(), shard.narrow(0, done, region.elements()), parameter.global_shape(), region, writes});
    done += region.elements();
  }
}

}  // namespace

std::vector<StateTensor> checkpoint_tensors(const std::vector<Parameter*>& parameters,
                                            const std::vector<Buffer*>& buffers, Optimizer& optimizer,
                                            const Groups& groups) {
  const Layout& layout = groups.layout();
  std::vector<StateTensor> tensors;
  for (const Parameter* parameter : parameters) add_value(tensors, *parameter, layout, groups.rank());
  for (const Buffer* buffer : buffers) {
    const BufferSpec& spec = buffer->spec();
    tensors.push_back({.name = buffer->name(),
                       .local = buffer->value(),
                       .global_shape = spec.shape,
                       .region = {0, spec.shape.elements()},
                       .writes = !spec.copy && layout.holds_first(spec, groups.rank()),
                       .kind = StateTensor::Kind::buffer});
  }
  optimizer.visit([&](const OptimizerTensor& piece) {
    const Axes owners = layout.sharding_axes(piece.parameter.expert);
    const bool writes = !piece.parameter.copy && layout.holds_first(piece.parameter, groups.rank(), owners);
    tensors.push_back({piece.name, piece.tensor, piece.parameter.shape, piece.region, writes, piece.remainder,
                       piece.remainder.defined() ? StateTensor::Kind::master : StateTensor::Kind::optimizer});
  });
  return tensors;
}

}  // namespace witan
