#include "witan/model/parts.h"

#include <memory>

namespace witan {
namespace {

// The part that a module's path stands for, or "" for modules that belong to the part around them.
std::string part_of(const Module& module) {
  const std::string name = module.path().substr(module.path().rfind('.') + 1);
  if (name == "embedding" || name == "attention" || name == "router" || name == "experts" || name == "mlp") return name;
  if (name == "shared_experts") return "mlp";
  if (name == "position_embedding" || name.starts_with("value_embedding_")) return "embedding";
  return name == "moe" ? "dispatch" : "";
}

}  // namespace

std::vector<ModuleObserver> charge_parts(Transformer& model, Stream& stream) {
  std::vector<ModuleObserver> observers;
  // Modules nest: leaving one returns to the part that was current when it was entered.
  auto outer = std::make_shared<std::vector<std::string>>();
  const auto leave = [&stream, outer] {
    stream.set_part(outer->back());
    outer->pop_back();
  };
  model.visit([&](Module& module) {
    const std::string part = part_of(module);
    if (part.empty()) return;
    const auto enter = [&stream, outer, part] { outer->push_back(stream.set_part(part)); };
    observers.emplace_back(module, ModuleHooks{enter, leave, enter, leave});
  });
  return observers;
}

}  // namespace witan
