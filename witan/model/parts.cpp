#include "witan/model/parts.h"

#include <map>
#include <memory>

#include "witan/model/mtp.h"

namespace witan {

std::vector<ModuleObserver> charge_parts(Transformer& model, Stream& stream) {
  std::vector<ModuleObserver> observers;
  const std::vector<LayerSpec> layers = layers_with_mtp(model.config());
  std::map<const Module*, std::string> mixers;  // the names of their kinds
  for (const auto& [layer, mixer] : model.mixers())
    mixers.emplace(mixer, mixer_kind(layers[static_cast<size_t>(layer)].mixer).name());
  // Modules nest: leaving one returns to the part that was current when it was entered.
  auto outer = std::make_shared<std::vector<std::string>>();
  const auto leave = [&stream, outer] {
    stream.set_part(outer->back());
    outer->pop_back();
  };
  model.visit([&](Module& module) {
    const auto mixer = mixers.find(&module);
    const std::string part(mixer != mixers.end() ? mixer->second : module.cost_part());
    if (part.empty()) return;
    const auto enter = [&stream, outer, part] { outer->push_back(stream.set_part(part)); };
    observers.emplace_back(module, ModuleHooks{enter, leave, enter, leave});
  });
  return observers;
}

}  // namespace witan
