#include "witan/model/parts.h"

#include <memory>
#include <set>

namespace witan {
namespace {

std::string last_name(const Module& module) {
  return module.path().substr(module.path().rfind('.') + 1);
}

// The part that a module's path stands for, or "" for modules that belong to the part around them.
std::string part_of(const Module& module) {
  const std::string name = last_name(module);
  if (name == "embedding" || name == "router" || name == "experts" || name == "mlp") return name;
  if (name == "shared_experts") return "mlp";
  if (name == "position_embedding" || name.starts_with("value_embedding_")) return "embedding";
  return name == "moe" ? "dispatch" : "";
}

}  // namespace

std::vector<ModuleObserver> charge_parts(Transformer& model, Stream& stream) {
  std::vector<ModuleObserver> observers;
  // Modules nest: leaving one returns to the part that was current when it was entered.
  std::set<const Module*> mixers;
  for (const auto& [layer, mixer] : model.mixers()) mixers.insert(mixer);
  auto outer = std::make_shared<std::vector<std::string>>();
  const auto leave = [&stream, outer] {
    stream.set_part(outer->back());
    outer->pop_back();
  };
  model.visit([&](Module& module) {
    const std::string part = mixers.contains(&module) ? last_name(module) : part_of(module);
    if (part.empty()) return;
    const auto enter = [&stream, outer, part] { outer->push_back(stream.set_part(part)); };
    observers.emplace_back(module, ModuleHooks{enter, leave, enter, leave});
  });
  return observers;
}

}  // namespace witan
