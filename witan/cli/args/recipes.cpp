#include "witan/cli/args/recipes.h"

#include <algorithm>
#include <array>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"

// The assembler embeds the files unchanged, as in report/page/assets.cpp.
#define WITAN_EMBED(symbol, file)                                            \
  asm(".section .rodata\n" #symbol "_begin:\n.incbin \"" file "\"\n" #symbol \
      "_end:\n.byte 0\n.previous\n"                                          \
      ".global " #symbol "_begin\n.global " #symbol "_end\n");               \
  extern "C" const char symbol##_begin[];                                    \
  extern "C" const char symbol##_end[];

// CMakeLists.txt lists the files: RECIPE(symbol, name below recipes/).
#define RECIPE(symbol, name) WITAN_EMBED(symbol, WITAN_RECIPES name)
#include <recipes.inc>
#undef RECIPE

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

constexpr std::string_view kRecipes = "recipes/";
constexpr uint64_t kMostBytes = 1 << 20;

// " (did you mean mixtral-8x22b or mixtral-8x7b?)" if names begin with `name`, otherwise the nearest one.
std::string preset_meant(std::string_view name, const std::vector<std::string>& names) {
  std::string lower(name), begin_so;
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  for (const std::string& one : names)
    if (!lower.empty() && one.starts_with(lower)) begin_so += (begin_so.empty() ? "" : " or ") + one;
  return begin_so.empty() ? suggestion(lower, names) : cat(" (did you mean ", begin_so, "?)");
}

}  // namespace

std::span<const Recipe> recipes() {
#define RECIPE(symbol, name) {"recipes/" name, {symbol##_begin, symbol##_end}},
  static const auto all = std::to_array<Recipe>({
#include <recipes.inc>
  });
#undef RECIPE
  return all;
}

std::string read_recipe(const std::string& path, const std::string& flag) {
  std::error_code none;
  if (path.starts_with(kRecipes) && !fs::exists(path, none)) {
    const auto found = std::ranges::find(recipes(), path, &Recipe::name);
    if (found != recipes().end()) return std::string(found->text);
    const fs::path extension = fs::path(path).extension();
    throw ConfigError(cat(flag, clipped(path), ": there is no such file below this folder, and no such recipe",
                          suggestion(path, recipe_names(extension.empty() ? ".toml" : extension.string()))));
  }
  try {
    return read_file(path, kMostBytes);
  } catch (const IoError& error) {
    throw ConfigError(error.what());
  }
}

std::vector<std::string> recipe_names(std::string_view ending) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes())
    if (recipe.name.ends_with(ending)) names.emplace_back(recipe.name);
  std::ranges::sort(names);
  return names;
}

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
