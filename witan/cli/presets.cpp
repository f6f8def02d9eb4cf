#include "witan/cli/presets.h"

#include <algorithm>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/recipes.h"

namespace witan::cli {

std::string_view Preset::summary() const {
  const std::string_view line = toml.substr(0, toml.find('\n'));
  return line.substr(std::min(line.find_first_not_of("# "), line.size()));
}

std::span<const Preset> presets() {
  static const std::vector<Preset> all = [] {
    constexpr std::string_view kFolder = "recipes/presets/", kEnding = ".toml";
    std::vector<Preset> found;
    for (const Recipe& recipe : recipes()) {
      if (recipe.name == "recipes/reference/moe.toml") found.push_back({"megatron-moe-4b", recipe.text});
      if (!recipe.name.starts_with(kFolder)) continue;
      const std::string_view file = recipe.name.substr(kFolder.size());
      found.push_back({file.substr(0, file.size() - kEnding.size()), recipe.text});
    }
    std::ranges::sort(found, {}, &Preset::name);
    return found;
  }();
  return all;
}

namespace {

// " (did you mean mixtral-8x22b or mixtral-8x7b?)" of a name that some begin with; of others the nearest one.
std::string preset_meant(std::string_view name, const std::vector<std::string>& names) {
  std::string lower(name), begin_so;
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  for (const std::string& one : names)
    if (!lower.empty() && one.starts_with(lower)) begin_so += (begin_so.empty() ? "" : " or ") + one;
  return begin_so.empty() ? suggestion(lower, names) : cat(" (did you mean ", begin_so, "?)");
}

}  // namespace

const Preset& find_preset(std::string_view name) {
  const auto found = std::ranges::find(presets(), name, &Preset::name);
  if (found != presets().end()) return *found;
  std::vector<std::string> names;
  std::string list;
  for (const Preset& preset : presets()) {
    names.emplace_back(preset.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  throw ConfigError(
      cat("--preset ", clipped(name), ": there is no such preset", preset_meant(name, names), "; there are ", list));
}

std::string describe_presets() {
  std::string text;
  for (const Preset& preset : presets()) text += cat("\n", preset.name, ": ", preset.summary());
  return text;
}

}  // namespace witan::cli
