#include "witan/model/freeze.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

std::vector<std::string> listed(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    std::erase(word, ' ');
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

std::shared_ptr<const LoraConfig> lora_of(const ModelConfig& config) {
  const std::vector<std::string>& names = lora_target_names();
  std::vector<std::string> targets = listed(config.lora_target_modules);
  for (const std::string& target : targets)
    require<ConfigError>(target == "all" || std::ranges::find(names, target) != names.end(),
                         "lora_target_modules: there is no ", clipped(target), suggestion(target, names),
                         "; there are ", fmt::format("{}", fmt::join(names, ", ")), " and all");
  require<ConfigError>(config.lora_dropout < 1, "lora_dropout = ", config.lora_dropout,
                       " drops everything; use a probability below 1, such as 0.05");
  require<ConfigError>(config.lora_rank > 0 || targets.empty(), "lora_target_modules = ", config.lora_target_modules,
                       " without adapters: set lora_rank, as to 16");
  if (config.lora_rank == 0) return nullptr;
  if (targets.empty() || std::ranges::find(targets, "all") != targets.end()) targets = names;
  return std::make_shared<const LoraConfig>(
      LoraConfig{config.lora_rank, config.lora_alpha, config.lora_dropout, std::move(targets)});
}

Freeze::Freeze(const ModelConfig& config) : lora_(config.lora_rank > 0), patterns_(listed(config.freeze)) {}

bool Freeze::fits(const std::string& pattern, const ParameterSpec& spec) {
  return pattern == name_of(spec.kind) || fnmatch(pattern.c_str(), spec.name.c_str(), 0) == 0;
}

bool Freeze::takes(const ParameterSpec& spec) const {
  if (lora_ && !is_adapter(spec.name)) return true;
  return std::ranges::any_of(patterns_, [&](const std::string& pattern) { return fits(pattern, spec); });
}

}  // namespace witan
