#include <algorithm>
#include <functional>
#include <utility>

#include "witan/optim/optimizer.h"
#include "witan/parallel/sharding/shard_plan.h"

namespace witan {
namespace {

// Parameters with one owner: an expert of a stack, or adjacent parameters.
struct Owned {
  std::vector<size_t> parameters;
  double cost = 0;
};

// The parameters that are sharded by matrices, in the model's order. One such parameter of a fused run takes the whole
// run along.
std::vector<Owned> units_of(const std::vector<Parameter*>& parameters, bool experts, const ShardingPolicy& policy) {
  std::vector<Owned> units;
  const auto spec = [&](size_t i) -> const ParameterSpec& { return parameters[i]->spec(); };
  for (size_t i = 0, end = 0; i < parameters.size(); i = end) {
    end = i + 1;
    while (end < parameters.size() && spec(end).fused_with_previous && spec(end).kind == spec(i).kind &&
           spec(end).frozen == spec(i).frozen)
      ++end;
    Owned unit;
    bool by_matrices = false;
    for (size_t member = i; member < end; ++member) {
      by_matrices = by_matrices || policy.by_matrices(spec(member));
      unit.parameters.push_back(member);
      unit.cost += policy.cost(spec(member));
    }
    if (spec(i).expert != experts || !by_matrices) continue;
    units.insert(units.end(), experts ? static_cast<size_t>(parameters[i]->shape()[0]) : 1, unit);
  }
  return units;
}

}  // namespace

bool ShardingPolicy::by_matrices(const ParameterSpec& spec) const {
  return groups_ && !spec.frozen && groups_->of(spec).shard_by == ShardBy::matrices;
}

double ShardingPolicy::cost(const ParameterSpec& spec) const {
  if (!groups_) return 0;
  const OptimizerSettings& settings = groups_->of(spec).settings;
  const int dims = spec.shape.dims();
  const int64_t columns = spec.shape[dims - 1], stack = spec.expert ? spec.shape[0] : 1;
  return optimizer_traits(settings.optimizer).cost(settings, spec.shape.elements() / stack / columns, columns);
}

std::vector<std::vector<int>> matrix_owners(const std::vector<Parameter*>& parameters, const Layout& layout,
                                            const ShardingPolicy& policy) {
  std::vector<std::vector<int>> owners(parameters.size());
  for (const bool experts : {false, true}) {
    std::vector<Owned> units = units_of(parameters, experts, policy);
    std::ranges::stable_sort(units, std::greater(), [&](const Owned& unit) {
      return std::pair(parameters[unit.parameters.front()]->spec().tied, unit.cost);
    });
    std::vector<double> loads(static_cast<size_t>(layout.sharding_ranks(experts)));
    for (const Owned& unit : units) {
      const auto least = std::ranges::min_element(loads);  // the first minimum
      *least += unit.cost;
      for (const size_t i : unit.parameters) owners[i].push_back(static_cast<int>(least - loads.begin()));
    }
  }
  for (std::vector<int>& of_parameter : owners) std::ranges::sort(of_parameter);
  return owners;
}

}  // namespace witan
