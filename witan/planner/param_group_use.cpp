#include "witan/planner/param_group_use.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads.h"
#include "witan/model/transformer.h"
#include "witan/optim/param_groups.h"
#include "witan/parallel/groups.h"

namespace witan {
namespace {

// The specifications of all parameters, as one rank would hold them.
std::vector<ParameterSpec> all_parameters(const RunConfig& config) {
  const ParallelConfig one{1, 1, 1};
  const Groups groups = make_meta_groups(Layout(one, 1, config.model.moe.num_experts), 0);
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  const Transformer model(stream, config.model, 0, groups.model_axes(one));
  std::vector<ParameterSpec> specs;
  for (const Parameter* parameter : model.parameters()) specs.push_back(parameter->spec());
  return specs;
}

// "layers.*.attention.q_proj.weight": names that differ only by the layer are one.
std::string pattern_of(const std::string& name) {
  const auto is_number = [](const std::string& word) {
    return !word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    pattern += (pattern.empty() ? "" : ".") + (is_number(word) ? "*" : word);
    begin = end + 1;
  }
  return pattern;
}

// "norms (layers.*.norm.weight, norm.weight), ...": what there is, by kind.
std::string what_there_is(const std::vector<ParameterSpec>& specs) {
  std::map<ParameterKind, std::vector<std::string>> names;
  for (const ParameterSpec& spec : specs) {
    std::vector<std::string>& of_kind = names[spec.kind];
    if (const std::string pattern = pattern_of(spec.name); std::ranges::find(of_kind, pattern) == of_kind.end())
      of_kind.push_back(pattern);
  }
  std::string text;
  for (const auto& [kind, of_kind] : names)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name_of(kind), fmt::join(of_kind, ", "));
  return text;
}

// Throws for the group, which took nothing.
[[noreturn]] void refuse(int table, const ParamGroup& group, const std::vector<ParameterSpec>& specs) {
  const auto fitting = std::ranges::count_if(specs, [&](const ParameterSpec& spec) { return group.takes(spec); });
  if (fitting > 0)
    throw ConfigError(cat("[[optimizer.groups]] ", table, " (", group.label, "): groups before it take all ", fitting,
                          " parameters that it matches, and the first group that matches wins: put it before them, or "
                          "leave it out"));
  throw ConfigError(cat("[[optimizer.groups]] ", table, " (", group.label, ") matches no parameter; this model has ",
                        what_there_is(specs)));
}

}  // namespace

std::vector<ParamGroupUse> use_of_param_groups(const RunConfig& config) {
  const ParamGroups groups(config.optimizer);
  if (groups.size() == 1) return {};
  const std::vector<ParameterSpec> specs = all_parameters(config);
  std::vector<ParamGroupUse> uses;
  for (const ParamGroup& group : groups.all())
    uses.push_back({group.label, group.settings.optimizer, std::string(name_of(group.shard_by)), group.settings.lr,
                    group.settings.min_lr});
  for (const ParameterSpec& spec : specs) {
    ParamGroupUse& use = uses[groups.index_of(spec)];
    use.weight_decay = std::max(use.weight_decay, groups.of(spec).weight_decay(spec));
    ++use.tensors;
    use.parameters += spec.shape.elements();
  }
  std::vector<int64_t> taken(config.optimizer.groups.size() + 1);  // by each table, which may be two groups
  for (size_t i = 0; i < uses.size(); ++i) taken[static_cast<size_t>(groups.all()[i].table)] += uses[i].tensors;
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
