#include "witan/model/recompute_modules.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

void add(RecomputeModules& all, const std::string& name) {
  constexpr std::array<std::pair<const char*, bool RecomputeModules::*>, 7> kModules = {
      {{"layernorm", &RecomputeModules::layernorm},
       {"mlp_act", &RecomputeModules::mlp_act},
       {"moe_act", &RecomputeModules::moe_act},
       {"shared_experts", &RecomputeModules::shared_experts},
       {"mlp", &RecomputeModules::mlp},
       {"moe", &RecomputeModules::moe},
       {"mla_up_proj", &RecomputeModules::mla_up_proj}}};
  if (name == "core_attn") return;
  const auto found = std::ranges::find(kModules, name, [](const auto& module) { return module.first; });
  require<ConfigError>(
      found != kModules.end(), "recompute_modules: \"", name,
      "\" cannot be recomputed by itself; use some of layernorm, mlp_act, moe_act, shared_experts, mlp, moe, "
      "mla_up_proj and core_attn, or recompute_granularity = full");
  all.*found->second = true;
}

}  // namespace

RecomputeModules read_recompute_modules(const ModelConfig& config) {
  RecomputeModules all;
  std::istringstream names(config.recompute_modules);
  for (std::string name; std::getline(names, name, ',');) {
    std::erase(name, ' ');
    add(all, name);
  }
  require<ConfigError>(!all.mla_up_proj || config.attention.multi_latent_attention,
                       "recompute_modules: mla_up_proj recomputes queries, keys and values that are made from latents: "
                       "leave it out, or set multi_latent_attention = true");
  if (config.recompute() != Recompute::selective) return {};
  if (config.recompute_modules.empty()) all.layernorm = all.mlp_act = all.moe_act = true;
  return all;
}

}  // namespace witan
