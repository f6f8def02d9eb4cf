#include "witan/planner/pages/layout_page.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/shard_plan.h"
#include "witan/parallel/stages.h"
#include "witan/planner/pages/plan_page.h"

namespace witan {
namespace {

// A module, or a parameter if `line` is set. Children are in the model's order.
struct Node {
  std::string name, line;
  std::vector<Node> children;

  Node& child(const std::string& of) {
    const auto found = std::ranges::find(children, of, &Node::name);
    return found != children.end() ? *found : children.emplace_back(Node{of, {}, {}});
  }
};

void add(Node& root, std::string_view path, const std::string& line) {
  Node* node = &root;
  for (size_t dot; (dot = path.find('.')) != std::string_view::npos; path.remove_prefix(dot + 1))
    node = &node->child(std::string(path.substr(0, dot)));
  node->child(std::string(path)).line = line;
}

std::string text_of(const std::vector<Node>& nodes, int depth);

// The index after the last of the consecutive modules that hold the same as `first`.
size_t end_of_alike(const std::vector<Node>& nodes, size_t first, const std::string& below, int depth) {
  size_t end = first + 1;
  if (!nodes[first].line.empty()) return end;
  while (end < nodes.size() && nodes[end].line.empty() && text_of(nodes[end].children, depth + 1) == below) ++end;
  return end;
}

// "q_proj", "0 … 3", "k_proj, v_proj"
std::string names_of(const std::vector<Node>& nodes, size_t first, size_t end) {
  std::string text = nodes[first].name;
  const bool numbers = text.find_first_not_of("0123456789") == std::string::npos;
  if (numbers && end > first + 1) return cat(text, " … ", nodes[end - 1].name);
  for (size_t i = first + 1; i < end; ++i) text += cat(", ", nodes[i].name);
  return text;
}

std::string text_of(const std::vector<Node>& nodes, int depth) {
  constexpr int kColumn = 30;
  std::string text;
  for (size_t i = 0, end; i < nodes.size(); i = end) {
    const std::string below = text_of(nodes[i].children, depth + 1);
    end = end_of_alike(nodes, i, below, depth);
    const std::string name = std::string(static_cast<size_t>(2 * depth), ' ') + names_of(nodes, i, end);
    text += nodes[i].line.empty() ? cat(name, "\n") : fmt::format("{:<{}}{}\n", name, kColumn, nodes[i].line);
    text += below;
  }
  return text;
}

// "Replicate on replicate; Shard(0) on tensor; values, gradient and optimizer sharded over shard"
std::string text_of(const HeldParameter& held, const Layout& layout) {
  std::vector<std::pair<std::string, std::string>> kinds;  // placement, axes
  for (const auto& [axis, placement] : held.placements) {
    const std::string kind = placement.kind == Placement::Kind::replicate ? "Replicate" : cat(placement);
    const auto found = std::ranges::find(kinds, kind, &std::pair<std::string, std::string>::first);
    if (found == kinds.end())
      kinds.emplace_back(kind, name_of(axis));
    else
      found->second += cat(", ", axis);
  }
  std::string text;
  for (const auto& [kind, axes] : kinds) text += cat(text.empty() ? "" : "; ", kind, " on ", axes);
  const auto things = sharded_state(layout, held.expert);
  if (!things.empty())
    text +=
        fmt::format("{}{} sharded over {}", text.empty() ? "" : "; ", fmt::join(things, ", "), describe(held.owners));
  return text;
}

// Explains the terms that `lines` use.
std::string legend(const std::string& lines) {
  const std::pair<const char*, const char*> kWords[] = {
      {"Replicate on ", "  Replicate on an axis: each of its ranks holds a full copy of what is shown\n"},
      {"Shard(", "  Shard(d) on an axis: each of its ranks holds an equal slice of dim d, counted from 0\n"},
      {"sharded over ",
       "  sharded over axes: concatenated with others into one flat buffer, which is split into one shard per rank, as "
       "evenly\n    as possible and regardless of row boundaries. Sharded values are all-gathered while their block "
       "computes\n"}};
  std::string text;
  for (const auto& [word, meaning] : kWords)
    if (lines.find(word) != std::string::npos) text += meaning;
  return text.empty() ? "" : "\nLegend\n" + text;
}

// "rank 0 holds 12.1 K of the 48.6 K elements that it shards with other ranks"
std::string kept_text(const std::vector<HeldParameter>& parameters) {
  int64_t kept = 0, all = 0;
  for (const HeldParameter& one : parameters) {
    if (one.owners.empty()) continue;
    kept += one.local_elements;
    all += one.local.elements();
  }
  return fmt::format("rank 0 holds {} of the {} elements that it shards with other ranks",
                     format_count(static_cast<double>(kept)), format_count(static_cast<double>(all)));
}

constexpr std::array kDenseAxes = {Axis::pipeline, Axis::replicate, Axis::shard, Axis::context, Axis::tensor};
constexpr std::array kExpertAxes = {Axis::pipeline, Axis::expert_replicate, Axis::expert_shard, Axis::expert,
                                    Axis::expert_tensor};

std::string sizes_of(const Mesh& mesh, std::span<const Axis> axes) {
  std::string text;
  for (const Axis axis : axes)
    if (mesh.size(axis) > 1) text += cat(text.empty() ? "" : " x ", axis, " ", mesh.size(axis));
  return text.empty() ? "one rank" : text;
}

// The ranks of the rank's group over these axes as nested lists; the innermost axis is the innermost list.
nlohmann::ordered_json nested_ranks(const Mesh& mesh, int rank, const Axes& axes) {
  const std::vector<int> ranks = mesh.ranks(rank, axes);
  nlohmann::ordered_json level(ranks);
  const Axes dims = mesh.effective(axes);
  for (size_t dim = dims.size(); dim-- > 1;) {
    const auto size = static_cast<size_t>(mesh.size(dims[dim]));
    nlohmann::ordered_json outer = nlohmann::ordered_json::array();
    for (size_t i = 0; i < level.size(); i += size)
      outer.push_back(nlohmann::ordered_json(level.begin() + static_cast<std::ptrdiff_t>(i),
                                             level.begin() + static_cast<std::ptrdiff_t>(i + size)));
    level = std::move(outer);
  }
  return level;
}

// "[[0, 1], [2, 3]]"
std::string listed(const nlohmann::ordered_json& nested) {
  if (!nested.is_array()) return nested.dump();
  std::string text;
  for (const auto& inner : nested) text += cat(text.empty() ? "" : ", ", listed(inner));
  return cat("[", text, "]");
}

// "('shard', 'tensor')" and "('tensor',)", as Python writes tuples
std::string tuple_of(const Axes& dims) {
  std::string text;
  for (const Axis axis : dims) text += cat(text.empty() ? "'" : ", '", axis, "'");
  return cat("(", text, dims.size() == 1 ? ",)" : ")");
}

std::string device_mesh(const Mesh& mesh, int rank, const Axes& axes) {
  return cat("DeviceMesh(", listed(nested_ranks(mesh, rank, axes)), ", mesh_dim_names=", tuple_of(mesh.effective(axes)),
             ")");
}

// "replicate=0, shard=1, tensor=0"
std::string coordinates_of(const Mesh& mesh, int rank, const Axes& dims) {
  std::string text;
  for (const Axis axis : dims) text += cat(text.empty() ? "" : ", ", axis, "=", mesh.coordinate(rank, axis));
  return text;
}

constexpr int kMostRanksShown = 64;

// The whole mesh of each view, then the coordinates and sub-meshes of each rank, in the notation of torch's DeviceMesh.
// Empty for one rank.
std::string device_meshes(const Layout& layout, bool experts) {
  const Mesh& mesh = layout.mesh();
  const int ranks = layout.world_size();
  if (ranks == 1) return "";
  std::vector<Axes> views = {mesh.effective({kDenseAxes.begin(), kDenseAxes.end()})};
  if (experts) views.push_back(mesh.effective({kExpertAxes.begin(), kExpertAxes.end()}));
  std::string text = "\nDevice meshes\n";
  for (const Axes& view : views) text += cat("  ", device_mesh(mesh, 0, view), "\n");
  text += "\nRanks: their coordinates, and the mesh of each of their groups\n";
  for (int rank = 0; rank < std::min(ranks, kMostRanksShown); ++rank) {
    text += fmt::format("  rank {:<4} {}\n", rank, coordinates_of(mesh, rank, views.front()));
    if (experts) text += fmt::format("            {}\n", coordinates_of(mesh, rank, views.back()));
    for (const Axes& axes : layout.group_axes()) {
      const bool dense = !axes.empty() && std::ranges::find(kDenseAxes, axes.front()) != kDenseAxes.end();
      if (dense || (experts && !axes.empty())) text += cat("    ", device_mesh(mesh, rank, axes), "\n");
    }
  }
  if (ranks > kMostRanksShown)
    text += fmt::format("  and {} more ranks, which --json lists\n", ranks - kMostRanksShown);
  return text;
}

// All groups over the axes, each listed once.
nlohmann::ordered_json groups_over(const Mesh& mesh, const Axes& axes) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  const auto is_first = [&](int rank) {
    return std::ranges::all_of(axes, [&](Axis axis) { return mesh.coordinate(rank, axis) == 0; });
  };
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    if (is_first(rank)) groups.push_back(nested_ranks(mesh, rank, axes));
  return groups;
}

}  // namespace

std::string format_layout(const ResolvedConfig& config, std::optional<int64_t> assumed_vocabulary) {
  const Layout layout(config->parallel, static_cast<int>(config->parallel.ranks), config->model.moe.num_experts);
  const Mesh& mesh = layout.mesh();
  std::string text = fmt::format("Layout of {} rank{}\n  mesh           {}\n", layout.world_size(),
                                 layout.world_size() == 1 ? "" : "s", sizes_of(mesh, kDenseAxes));
  if (config->model.moe.num_experts > 0) text += fmt::format("  expert mesh    {}\n", sizes_of(mesh, kExpertAxes));
  if (const std::string divided = sharding_text(config, layout); !divided.empty())
    text += cat("  sharded        ", divided, "\n");
  const std::vector<HeldParameter> parameters = held_parameters(config, layout);
  if (std::ranges::any_of(parameters, [](const HeldParameter& one) { return !one.owners.empty(); }))
    text += cat("                 ", kept_text(parameters), "\n");
  if (layout.world_size() > 1) {
    text += "\nGroups of rank 0\n";
    for (const Axes& axes : layout.group_axes())
      if (!axes.empty()) text += fmt::format("  {:<32} {}\n", describe(axes), fmt::join(mesh.ranks(0, axes), " "));
    if (layout.has_expert_hosts())
      text += fmt::format("  {:<32} {}\n  {:<32} {}\n", kExpertsOfHost, fmt::join(layout.expert_ranks_of_host(0), " "),
                          kExpertsBetweenHosts, fmt::join(layout.expert_ranks_between_hosts(0), " "));
  }
  std::vector<StageLayers> stages;
  const Stages split(config->parallel.stage_split(config->model.num_layers));
  for (int stage = 0; stage < split.stages(); ++stage) stages.push_back(split.held_by(stage));
  if (stages.size() > 1) text += "\nStages of the pipeline\n" + format_stages(stages);
  Node root;
  for (const HeldParameter& one : parameters)
    add(root, one.name,
        fmt::format("{:<34} {}", one.local == one.global ? cat(one.global) : cat(one.global, " -> ", one.local),
                    text_of(one, layout)));
  const std::string lines = text_of(root.children, 1);
  return text +
         fmt::format("\nParameters: shape -> local shape on rank 0{}, and placement on the mesh\n",
                     stages.size() > 1 ? " of their stage" : "") +
         lines + (assumed_vocabulary ? cat("  ", format_assumption(*assumed_vocabulary), "\n") : "") + legend(lines) +
         device_meshes(layout, config->model.moe.num_experts > 0);
}

std::string layout_json(const ResolvedConfig& config, std::optional<int64_t> assumed_vocabulary) {
  const Layout layout(config->parallel, static_cast<int>(config->parallel.ranks), config->model.moe.num_experts);
  const Mesh& mesh = layout.mesh();
  const auto names = [](const Axes& axes) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Axis axis : axes) list.push_back(name_of(axis));
    return list;
  };
  const auto sizes = [](const Shape& shape) {
    std::vector<int64_t> list;
    for (int dim = 0; dim < shape.dims(); ++dim) list.push_back(shape[dim]);
    return list;
  };
  nlohmann::ordered_json json;
  json["ranks"] = layout.world_size();
  if (assumed_vocabulary) json["assumed_vocabulary"] = *assumed_vocabulary;
  for (const Axis axis : kDenseAxes) json["mesh"][name_of(axis)] = mesh.size(axis);
  if (config->model.moe.num_experts > 0)
    for (const Axis axis : kExpertAxes) json["mesh_of_experts"][name_of(axis)] = mesh.size(axis);
  json["sharded"] = sharding_text(config, layout);
  json["groups_of_rank_0"] = json["groups"] = nlohmann::ordered_json::array();
  for (const Axes& axes : layout.group_axes())
    if (!axes.empty()) {
      json["groups_of_rank_0"].push_back({{"axes", names(axes)}, {"ranks", mesh.ranks(0, axes)}});
      json["groups"].push_back({{"axes", names(axes)}, {"ranks", groups_over(mesh, axes)}});
    }
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    nlohmann::ordered_json& coordinates = json["coordinates"].emplace_back();
    for (const Axis axis : kDenseAxes) coordinates[name_of(axis)] = mesh.coordinate(rank, axis);
    if (config->model.moe.num_experts > 0)
      for (const Axis axis : kExpertAxes) coordinates[name_of(axis)] = mesh.coordinate(rank, axis);
  }
  if (layout.has_expert_hosts())
    json["expert_hosts_of_rank_0"] = {{"of_host", layout.expert_ranks_of_host(0)},
                                      {"between_hosts", layout.expert_ranks_between_hosts(0)}};
  for (const HeldParameter& one : held_parameters(config, layout)) {
    nlohmann::ordered_json placements = nlohmann::ordered_json::object();
    for (const auto& [axis, placement] : one.placements) placements[name_of(axis)] = cat(placement);
    json["parameters"].push_back({{"name", one.name},
                                  {"shape", sizes(one.global)},
                                  {"local_shape", sizes(one.local)},
                                  {"placements", placements},
                                  {"sharded", sharded_state(layout, one.expert)},
                                  {"sharded_over", names(one.owners)},
                                  {"local_elements", one.local_elements}});
  }
  return json.dump(2) + "\n";
}

namespace {

// The usual name of the sharding, with the value of data_parallel_sharding_strategy.
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
