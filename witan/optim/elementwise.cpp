// AdamW, SGD, Lion and AdEMAMix: optimizers that update element by element, all shards of a parameter group in one
// launch, wherever chunks of elements are cut. The formulas are in kernels/optimizer/optimizer.h.

#include <cassert>
#include <span>

#include "witan/kernels/common/device_table.h"
#include "witan/optim/group_optimizer.h"

namespace witan {
namespace {

// A rule names its kernel, the arguments that settings give it, and its state in the order of the kernel's.
struct AdamW {
  static constexpr auto kUpdate = kernels::adamw_all;
  static kernels::AdamWArgs args(const OptimizerSettings& settings) {
    return {settings.adam_beta1, settings.adam_beta2, settings.adam_eps};
  }
  // Each moment may be kept in bfloat16, with half the memory.
  static std::vector<OptimizerStateSpec> state(const OptimizerSettings& settings) {
    const auto dtype_of = [](const std::string& moment) {
      return moment == "bfloat16" ? std::optional(DType::bf16) : std::nullopt;
    };
    return {{.prefix = "adam.m", .dtype = dtype_of(settings.exp_avg_dtype)},
            {.prefix = "adam.v", .dtype = dtype_of(settings.exp_avg_sq_dtype)}};
  }
};

struct Sgd {
  static constexpr auto kUpdate = kernels::sgd_all;
  static kernels::SgdArgs args(const OptimizerSettings& settings) { return {settings.sgd_momentum}; }
  static std::vector<OptimizerStateSpec> state(const OptimizerSettings& settings) {
    if (settings.sgd_momentum == 0) return {};
    return {{"sgd.momentum"}};
  }
};

struct Lion {
  static constexpr auto kUpdate = kernels::lion_all;
  static kernels::LionArgs args(const OptimizerSettings& settings) {
    return {settings.lion_beta1, settings.lion_beta2};
  }
  static std::vector<OptimizerStateSpec> state(const OptimizerSettings&) { return {{"lion.m"}}; }
};

struct AdEMAMix {
  static constexpr auto kUpdate = kernels::ademamix_all;
  static kernels::AdEMAMixArgs args(const OptimizerSettings& settings) {
    return {settings.adam_beta1,     settings.adam_beta2, settings.ademamix_beta3,
            settings.ademamix_alpha, settings.adam_eps,   static_cast<double>(settings.ademamix_warmup_iters)};
  }
  static std::vector<OptimizerStateSpec> state(const OptimizerSettings&) {
    return {{"ademamix.m"}, {"ademamix.slow"}, {"ademamix.v"}};
  }
};

template <class Rule>
class ElementwiseOptimizer final : public GroupOptimizer {
 public:
  ElementwiseOptimizer(const ParamGroup& group, size_t index, Stream& stream,
                       std::vector<ParameterShard> parameter_shards)
      : GroupOptimizer(group, index, stream, std::move(parameter_shards)),
        args_(Rule::args(group.settings)),
        table_(stream, static_cast<int64_t>(shards().size()) * kernels::kUpdateColumns, MemoryTag::optimizer) {}

 private:
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) override {
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
    args_.rate = rate;
    Rule::kUpdate(stream, items, table_.holding(stream, kernels::update_table(items)), step, args_);
  }

  decltype(Rule::args({})) args_;
  kernels::DeviceTable table_;
};

// A float32 update reads the gradient, and reads and writes the value and every tensor of state.
template <class Rule>
double elementwise_cost(const OptimizerSettings& settings, int64_t rows, int64_t columns) {
  double bytes = 12;
  for (const OptimizerStateSpec& state : Rule::state(settings))
    bytes += 2.0 * static_cast<double>(size_of(state.dtype.value_or(DType::f32)));
  return bytes * static_cast<double>(rows) * static_cast<double>(columns);
}

template <class Rule>
constexpr OptimizerTraits elementwise_traits(const char* name) {
  return {.name = name,
          .needs = ShardBy::elements,
          .state = Rule::state,
          .cost = elementwise_cost<Rule>,
          .make = make_group_optimizer<ElementwiseOptimizer<Rule>>};
}

}  // namespace

const OptimizerTraits kAdamWTraits = elementwise_traits<AdamW>("adam");
const OptimizerTraits kSgdTraits = elementwise_traits<Sgd>("sgd");
const OptimizerTraits kLionTraits = elementwise_traits<Lion>("lion");
const OptimizerTraits kAdEMAMixTraits = elementwise_traits<AdEMAMix>("ademamix");

}  // namespace witan
