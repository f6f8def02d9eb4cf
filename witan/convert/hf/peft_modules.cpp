#include "witan/convert/hf/peft_modules.h"

#include <algorithm>
#include <set>
#include <utility>

#include "witan/base/text.h"
#include "witan/convert/weight_source.h"

namespace witan {
namespace {

constexpr const char* kPeftPrefix = "base_model.model.";

std::string last_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}
std::string without_last(const std::string& path) {
  return path.substr(0, path.rfind('.'));
}

bool has_experts(const Architecture& architecture) {
  for (const auto& rules : architecture.rules)
    for (const TensorRule& rule : rules)
      if (rule.storage != ExpertStorage::any) return true;
  return false;
}

// The tensor's name in transformers' modules, where {l} stands for the layer; of fused experts, the parameter's name.
std::string module_name(const Architecture& architecture, const TensorRule& rule) {
  std::string name = cat(architecture.prefix, rule.other);
  for (const auto& [in_folders, in_modules] : architecture.modules)
    if (const size_t at = name.find(in_folders); at != std::string::npos)
      name.replace(at, in_folders.size(), in_modules);
  return name;
}

constexpr std::string_view kLayerNumber = "{l}";
std::string below_layer(const std::string& name) {
  const size_t at = name.find(kLayerNumber);
  return at == std::string::npos ? name : name.substr(at + kLayerNumber.size() + 1);
}

}  // namespace

int64_t PeftModule::covered() const {
  int64_t sum = 0;
  for (const PeftRows& part : parts) sum += part.of.out();
  return sum;
}

PeftModules::PeftModules(const Architecture& architecture, const ModelConfig& model)
    : architecture_(architecture), model_(model), tensors_(tensors_of(model)), rows_(rows_by_name(tensors_)) {
  for (const AdapterTensors& adapter : adapters_of(model)) place(adapter);
  // If a module has two adapted parameters, PEFT wraps the second around the first.
  for (size_t i = 0; i < modules_.size(); ++i) {
    const auto wraps = [&](const PeftModule& other) { return other.parameter && other.key == modules_[i].key; };
    if (modules_[i].parameter &&
        std::any_of(modules_.begin() + static_cast<std::ptrdiff_t>(i) + 1, modules_.end(), wraps))
      modules_[i].key.insert(modules_[i].key.rfind("lora_"), "base_layer.");
  }
}

// The rule of the adapted matrix, or of its adapted half (gate or up); null if transformers has no such module.
const TensorRule* PeftModules::rule_of(const AdapterTensors& adapter, std::string_view below) const {
  for (const auto& rules : architecture_.rules)
    for (const TensorRule& rule : rules) {
      if (rule.witan != below) continue;
      if (rule.parts > 1 && rule.part != (adapter.first_row > 0 ? 1 : 0)) continue;
      if (!adapter.experts) return &rule;
      if (rule.storage != ExpertStorage::fused && rule.storage != ExpertStorage::single) continue;
      const std::string name = module_name(architecture_, rule);
      // Modules hold all experts of a layer as one parameter, whose name has neither {e} nor ".weight". A rule whose
      // name still has one of them is of files whose modules are not known (Architecture::modules).
      if (name.find("{e}") == std::string::npos && !name.ends_with(".weight")) return &rule;
    }
  return nullptr;
}

// Why PEFT has no place for an adapter; empty if it has one.
std::string PeftModules::refusal_of(const AdapterTensors& adapter, const TensorRule* rule) const {
  if (rule == nullptr || rule->interleaved || (adapter.experts && rule->transposed))
    return cat("modules of ", architecture_.name, " hold ", adapter.base,
               " in another form than PEFT adapts; export the merged model (--format hf)");
  const std::string path = below_layer(module_name(architecture_, *rule));
  const std::string module = names_parameter(adapter, path) ? path : without_last(path);
  if (!architecture_.peft_refuses.empty() && last_of(module) == architecture_.peft_refuses)
    return cat("PEFT refuses adapters of ", architecture_.peft_refuses, " in models of ", architecture_.name, ", and ",
               adapter.base,
               " is one; export the merged model (--format hf), or train with lora_target_modules without ",
               last_of(without_last(adapter.base)));
  return "";
}

// Adds an adapter, such as "layers.L.attention.q_proj.lora_A", to its module, by the rule of its matrix.
void PeftModules::place(const AdapterTensors& adapter) {
  constexpr std::string_view kLayers = "layers.";
  std::string layer, below = adapter.base;  // no layer: the matrix is the model's
  if (below.starts_with(kLayers)) {
    const size_t dot = below.find('.', kLayers.size());
    layer = below.substr(kLayers.size(), dot - kLayers.size());
    below = below.substr(dot + 1);
  }
  const TensorRule* const rule = rule_of(adapter, below);
  if (std::string refusal = refusal_of(adapter, rule); !refusal.empty()) {
    if (refusal_.empty()) refusal_ = std::move(refusal);
    return;
  }
  std::string name = module_name(architecture_, *rule);
  const std::string path = below_layer(name);
  if (const size_t at = name.find(kLayerNumber); at != std::string::npos) name.replace(at, kLayerNumber.size(), layer);
  PeftModule module{path, kPeftPrefix + without_last(name) + ".lora_", names_parameter(adapter, path),
                    rule->transposed};
  if (!module.parameter) module.path = without_last(path);
  const int parts = adapter.experts ? 1 : rule->parts;  // modules hold gate and up of experts in one parameter
  const JoinedRows joined(adapter.base, rule->witan, rows_.at(adapter.base) / parts, rule->joined,
                          group_count(rule->groups, model_), rows_);
  module.rows = joined.all;
  const PeftRows rows{adapter, joined.first + (parts == 1 ? adapter.first_row : 0), joined.own, joined.of_group()};
  auto found = std::ranges::find_if(
      modules_, [&](const PeftModule& one) { return one.key == module.key && one.path == module.path; });
  if (found == modules_.end()) found = modules_.insert(modules_.end(), std::move(module));
  found->parts.insert(std::ranges::upper_bound(found->parts, rows.first, {}, &PeftRows::first), rows);
}

// In a model with experts PEFT takes gate_proj, up_proj and down_proj in target_modules for the experts', as in
// folders from before these were fused. MLPs beside experts are therefore named as parameters too.
bool PeftModules::names_parameter(const AdapterTensors& adapter, std::string_view in_layer) const {
  return adapter.experts || (has_experts(architecture_) && in_layer.starts_with("mlp."));
}

// PEFT adapts every module whose name ends with a target: the last part of the name, unless matrices without adapters
// have the same.
std::vector<std::string> PeftModules::targets() const {
  std::set<std::string> adapted, targets;
  for (const PeftModule& module : modules_)
    if (!module.parameter) adapted.insert(module.path);
  std::set<std::string> ambiguous;
  for (const ModelTensor& tensor : tensors_)
    for (const auto& rules : architecture_.rules)
      for (const TensorRule& rule : rules) {
        if (tensor.experts || !tensor.name.ends_with(cat('.', rule.witan)) ||
            rule.other.find(kLayerNumber) == std::string_view::npos)
          continue;
        const std::string path = without_last(below_layer(module_name(architecture_, rule)));
        if (!adapted.contains(path)) ambiguous.insert(last_of(path));
      }
  for (const std::string& path : adapted) targets.insert(ambiguous.contains(last_of(path)) ? path : last_of(path));
  return {targets.begin(), targets.end()};
}

}  // namespace witan
