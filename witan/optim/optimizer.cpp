#include "witan/optim/optimizer.h"

#include <fmt/ranges.h>

#include <array>

#include "witan/optim/group_optimizer.h"

namespace witan {
namespace {

constexpr std::array kAll = {&kAdamWTraits, &kSgdTraits,     &kLionTraits,    &kAdEMAMixTraits,
                             &kMuonTraits,  &kNorMuonTraits, &kShampooTraits, &kSoapTraits};

// One optimizer for each parameter group, over disjoint shards.
class GroupedOptimizer final : public Optimizer {
 public:
  explicit GroupedOptimizer(std::vector<std::unique_ptr<Optimizer>> optimizers) : optimizers_(std::move(optimizers)) {}

  void update(Stream& stream, const StepState& step) override {
    for (const auto& optimizer : optimizers_) optimizer->update(stream, step);
  }
  void visit(const std::function<void(const OptimizerTensor&)>& visitor) const override {
    for (const auto& optimizer : optimizers_) optimizer->visit(visitor);
  }
  void visit_shards(const std::function<void(const ParameterShard&, const Tensor&)>& visitor) const override {
    for (const auto& optimizer : optimizers_) optimizer->visit_shards(visitor);
  }

 private:
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
};

}  // namespace

const OptimizerTraits& optimizer_traits(const std::string& name) {
  for (const OptimizerTraits* traits : kAll)
    if (name == traits->name) return *traits;
  throw ConfigError(fmt::format("optimizer = {}: must be {}", name, fmt::join(optimizer_names(), " or ")));
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerTraits* traits : kAll) names.emplace_back(traits->name);
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, Stream& stream,
                                          std::vector<ParameterShard> shards) {
  config.validate();
  const ParamGroups groups(config);
  std::vector<std::vector<ParameterShard>> by_group(groups.size());
  for (const ParameterShard& shard : shards) by_group[groups.index_of(shard.parameter->spec())].push_back(shard);
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (size_t i = 0; i < groups.size(); ++i) {
    const ParamGroup& group = groups.all()[i];
    if (groups.size() > 1 && by_group[i].empty()) continue;
    optimizers.push_back(optimizer_traits(group.settings.optimizer).make(group, i, stream, std::move(by_group[i])));
  }
  if (groups.size() == 1) return std::move(optimizers.front());
  return std::make_unique<GroupedOptimizer>(std::move(optimizers));
}

}  // namespace witan
