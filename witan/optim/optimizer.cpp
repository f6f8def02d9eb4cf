#include "witan/optim/optimizer.h"

#include "witan/optim/adamw.h"
#include "witan/optim/sgd.h"
#include "witan/tensor/split.h"

namespace witan {

Optimizer::Optimizer(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned,
                     const std::vector<std::string>& prefixes) {
  for (const Owned& part : owned) {
    const int64_t held = part.parameter->elements();
    require<ShapeError>(part.first >= 0 && part.elements >= 0 && part.first <= held - part.elements,
                        "optimizer: ", part.parameter->name(), " has no elements [", part.first, ", ",
                        part.first + part.elements, "): this rank holds ", part.parameter->shape());
    Shard& shard = shards_.emplace_back();
    shard.owned = part;
    const bool decays = part.parameter->spec().weight_decay || config.decay_norms_and_biases;
    shard.weight_decay = decays ? config.weight_decay : 0;
    const Tensor value = shard.value();
    const DType dtype = accumulator(value.dtype());
    if (value.dtype() == DType::bf16)  // a master begins as the value that was drawn
      shard.remainder = stream.zeros(value.shape(), kRemainder, MemoryTag::optimizer);
    for (const std::string& prefix : prefixes)
      shard.state.emplace_back(prefix, stream.zeros(value.shape(), dtype, MemoryTag::optimizer));
  }
}

void Optimizer::update(Stream& stream, const StepState& step) {
  update_shards(stream, step.tensor());
}

void Optimizer::visit(const std::function<void(const OptimizerTensor&)>& visitor) const {
  for (const Shard& shard : shards_) {
    const Parameter& parameter = *shard.owned.parameter;
    const int64_t first = shard.owned.first;
    const auto regions = parameter.region().slice(first, first + shard.owned.elements);
    const auto show = [&](const std::string& prefix, const Tensor& tensor, const Tensor& remainder) {
      int64_t begin = 0;
      for (const Region& region : regions) {
        const auto piece = [&](const Tensor& whole) { return whole.narrow(0, begin, region.elements()); };
        visitor({prefix + "/" + parameter.name(), piece(tensor), parameter.spec(), region,
                 remainder.defined() ? piece(remainder) : Tensor()});
        begin += region.elements();
      }
    };
    if (shard.remainder.defined()) show("master", shard.value(), shard.remainder);
    for (const auto& [prefix, tensor] : shard.state) show(prefix, tensor, {});
  }
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned) {
  config.validate();
  if (config.optimizer == "adam") return std::make_unique<AdamW>(config, stream, std::move(owned));
  require<ConfigError>(config.optimizer == "sgd", "optimizer = ", config.optimizer, ": must be adam or sgd");
  return std::make_unique<Sgd>(config, stream, std::move(owned));
}

}  // namespace witan
