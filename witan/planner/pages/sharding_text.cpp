#include "witan/planner/pages/sharding_text.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/shard_plan.h"

namespace witan {
namespace {

// The name by which the field knows it, and the value of data_parallel_sharding_strategy.
std::string name_of(const Layout& layout) {
  const bool replicas = layout.mesh().size(Axis::replicate) > 1;
  switch (layout.sharding()) {
    case Sharding::optimizer:
      return "ZeRO-1 (optim)";
    case Sharding::gradients:
      return "ZeRO-2 (optim_grads)";
    case Sharding::parameters:
      return replicas ? "HSDP (optim_grads_params)" : "FSDP (optim_grads_params)";
    case Sharding::none:
      break;
  }
  return "";
}

std::vector<std::string> things_of(Sharding sharding) {
  if (sharding == Sharding::parameters) return {"values", "gradients", "optimizer"};
  if (sharding == Sharding::gradients) return {"gradients", "optimizer"};
  return sharding == Sharding::optimizer ? std::vector<std::string>{"optimizer"} : std::vector<std::string>{};
}

// "values, gradients and optimizer are"
std::string subject(const std::vector<std::string>& things) {
  if (things.size() == 1) return cat("the ", things[0], " is");
  std::string text;
  for (size_t i = 0; i < things.size(); ++i)
    text += cat(i == 0 ? "" : i + 1 == things.size() ? " and " : ", ", things[i]);
  return text + " are";
}

}  // namespace

std::vector<std::string> sharded_state(const Layout& layout, bool experts) {
  return layout.sharding_ranks(experts) > 1 ? things_of(layout.sharding()) : std::vector<std::string>{};
}

std::string sharding_text(const RunConfig& config, const Layout& layout) {
  if (layout.sharding() == Sharding::none) return "";
  const auto over = [&](bool experts) {
    return fmt::format("over {} ({}", describe(layout.sharding_axes(experts)), layout.sharding_ranks(experts));
  };
  const bool moe = config.model.moe.num_experts > 0, dense = layout.sharding_ranks(false) > 1,
             experts = moe && layout.sharding_ranks(true) > 1;
  std::string text = name_of(layout) + ": ";
  if (!dense && !experts) return text + "nothing is sharded, since the shard axes have one rank each";
  text += subject(things_of(layout.sharding()));
  if (dense) text += cat(" sharded ", over(false), " ranks)", experts ? ", for experts " + over(true) + ")" : "");
  if (!dense) text += cat(" sharded for experts only, ", over(true), " ranks)");
  if (dense && moe && !experts) text += "; experts are not sharded, since expert_shard has one rank";
  if (const int replicas = layout.mesh().size(Axis::replicate); replicas > 1)
    text += cat("; each of ", replicas, " replicas holds all shards");
  return text;
}

std::vector<HeldParameter> held_parameters(const ResolvedConfig& config, const Layout& layout) {
  constexpr int kRank = 0;
  const Groups groups = make_meta_groups(layout, kRank);
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  const Transformer model(stream, config->model, 0, groups.model_axes(config->parallel));
  const ShardPlan shard_plan(model.parameters(), layout, kRank, BucketPlan::kElements,
                             ShardingPolicy(config->optimizer));
  std::vector<HeldParameter> all;
  for (size_t i = 0; i < shard_plan.parameters().size(); ++i) {
    const Parameter& parameter = *shard_plan.parameters()[i];
    const ParameterSpec& spec = parameter.spec();
    HeldParameter& held = all.emplace_back();
    held.name = spec.name;
    held.expert = spec.expert;
    held.global = spec.shape;
    held.local = parameter.shape();
    held.owners = layout.sharding_axes(spec.expert);
    held.local_elements = shard_plan.range(i, layout.sharding_rank(spec.expert, kRank)).elements;
    for (const auto& [axis, placement] : layout.placements(spec)) {
      const bool owns = std::ranges::find(held.owners, axis) != held.owners.end();
      if (layout.mesh().size(axis) > 1 && !(owns && layout.shards_values(spec.expert)))
        held.placements.emplace_back(axis, placement);
    }
  }
  return all;
}

}  // namespace witan
