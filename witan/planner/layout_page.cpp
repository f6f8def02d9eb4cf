#include "witan/planner/layout_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "witan/base/threads.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/stages.h"
#include "witan/planner/format.h"

namespace witan {
namespace {

// A module, or with a line a parameter. Children are in the order of the model.
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

// The module after the last of those that hold the same as `first`, which come one after the other.
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

// "Replicate on replicate, shard; Shard(0) on expert"
std::string held(const Layout& layout, const ParameterSpec& spec) {
  const Axes owners = layout.owner_axes(spec.expert);
  std::vector<std::pair<std::string, std::string>> kinds;  // placement, axes
  for (const auto& [axis, placement] : layout.placements(spec)) {
    if (layout.mesh().size(axis) == 1) continue;
    const bool whole = placement.kind == Placement::Kind::replicate;
    const bool divided = layout.divides_values(spec.expert) && std::ranges::find(owners, axis) != owners.end();
    const std::string kind = divided ? "Shard" : whole ? "Replicate" : cat(placement);
    const auto found = std::ranges::find(kinds, kind, &std::pair<std::string, std::string>::first);
    if (found == kinds.end())
      kinds.emplace_back(kind, name_of(axis));
    else
      found->second += cat(", ", axis);
  }
  std::string text;
  for (const auto& [kind, axes] : kinds) text += cat(text.empty() ? "" : "; ", kind, " on ", axes);
  const char* more = layout.divides_gradients(spec.expert) ? "; gradient and optimizer over " : "; optimizer over ";
  if (layout.owners(spec.expert) > 1) text += cat(more, describe(owners));
  return text;
}

std::string sizes_of(const Mesh& mesh, std::initializer_list<Axis> axes) {
  std::string text;
  for (const Axis axis : axes)
    if (mesh.size(axis) > 1) text += cat(text.empty() ? "" : " x ", axis, " ", mesh.size(axis));
  return text.empty() ? "one rank" : text;
}

}  // namespace

std::string format_layout(const RunConfig& config) {
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  const Mesh& mesh = layout.mesh();
  std::string text = fmt::format(
      "Layout of {} rank{}\n  mesh           {}\n", layout.world_size(), layout.world_size() == 1 ? "" : "s",
      sizes_of(mesh, {Axis::pipeline, Axis::replicate, Axis::shard, Axis::context, Axis::tensor}));
  if (config.model.moe.num_experts > 0)
    text +=
        fmt::format("  of experts     {}\n", sizes_of(mesh, {Axis::pipeline, Axis::expert_replicate, Axis::expert_shard,
                                                             Axis::expert, Axis::expert_tensor}));
  const Groups groups = make_meta_groups(layout, 0);
  if (layout.world_size() > 1) {
    text += "\nGroups of rank 0\n";
    for (const Axes& axes : layout.group_axes())
      if (!axes.empty()) text += fmt::format("  {:<32} {}\n", describe(axes), fmt::join(mesh.ranks(0, axes), " "));
  }
  std::vector<StageLayers> stages;
  const Stages split(config.parallel.stage_split(config.model.num_layers));
  for (int stage = 0; stage < split.stages(); ++stage) stages.push_back(split.held_by(stage));
  if (stages.size() > 1) text += "\nStages of the pipeline\n" + format_stages(stages);
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  const Transformer model(stream, config.model, 0, groups.model_axes(config.parallel));
  Node root;
  for (const Parameter* parameter : model.parameters()) {
    const ParameterSpec& spec = parameter->spec();
    const Shape &global = spec.shape, &local = parameter->shape();
    add(root, spec.name,
        fmt::format("{:<34} {}", local == global ? cat(global) : cat(global, " -> ", local), held(layout, spec)));
  }
  return text +
         fmt::format("\nParameters -> what rank 0{} has of them, and how ranks hold them\n",
                     stages.size() > 1 ? " of their stage" : "") +
         text_of(root.children, 1);
}

}  // namespace witan
