#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/optim/param_groups.h"
#include "witan/planner/plan.h"
#include "witan/train/config/trained_parameters.h"

namespace witan {
namespace {

// Throws ConfigError for a group that takes no parameters.
[[noreturn]] void refuse(int table, const ParamGroup& group, const std::vector<ParameterSpec>& specs) {
  const auto fitting = std::ranges::count_if(specs, [&](const ParameterSpec& spec) { return group.takes(spec); });
  if (fitting > 0)
    throw ConfigError(cat("[[optimizer.groups]] ", table, " (", group.label, "): groups before it take all ", fitting,
                          " parameters that it matches, and the first group that matches wins: put it before them, or "
                          "leave it out"));
  throw ConfigError(cat("[[optimizer.groups]] ", table, " (", group.label, ") matches no parameter; this model has ",
                        describe_parameters(specs)));
}

}  // namespace

std::vector<ParamGroupUse> use_of_param_groups(const RunConfig& config) {
  const ParamGroups groups(config.optimizer);
  if (groups.size() == 1) return {};
  const std::vector<ParameterSpec> specs = all_parameters(config.model);
  std::vector<ParamGroupUse> uses;
  for (const ParamGroup& group : groups.all())
    uses.push_back({group.label, group.settings.optimizer, std::string(name_of(group.shard_by)), group.settings.lr,
                    group.settings.min_lr});
  // Counts per [[optimizer.groups]] table, which may stand for two groups; frozen parameters count, since their group
  // takes them without training them.
  std::vector<int64_t> taken(config.optimizer.groups.size() + 1);
  for (const ParameterSpec& spec : specs) {
    const size_t group = groups.index_of(spec);
    ++taken[static_cast<size_t>(groups.all()[group].table)];
    if (spec.frozen) continue;
    ParamGroupUse& use = uses[group];
    use.weight_decay = std::max(use.weight_decay, groups.of(spec).weight_decay(spec));
    ++use.tensors;
    use.parameters += spec.shape.elements();
  }
  for (const ParamGroup& group : groups.all())
    if (group.table > 0 && taken[static_cast<size_t>(group.table)] == 0) refuse(group.table, group, specs);
  std::ranges::rotate(uses, uses.begin() + 1);
  std::erase_if(uses, [](const ParamGroupUse& use) { return use.tensors == 0 && use.label != "all others"; });
  return uses;
}

std::vector<std::string> format_param_groups(const std::vector<ParamGroupUse>& groups) {
  size_t width = 0;
  for (const ParamGroupUse& group : groups) width = std::max(width, group.label.size());
  std::vector<std::string> lines;
  for (const ParamGroupUse& group : groups)
    lines.push_back(fmt::format("{:<{}}  {:>8} in {} tensor{}: {}, learning rate {:g} to {:g}, weight decay {:g}{}",
                                group.label, width, format_count(static_cast<double>(group.parameters)), group.tensors,
                                group.tensors == 1 ? "" : "s", group.optimizer, group.lr, group.min_lr,
                                group.weight_decay, group.shard_by == "matrices" ? "; sharded by whole matrices" : ""));
  return lines;
}

}  // namespace witan
