#include "witan/cli/args/recipes.h"

#include <algorithm>
#include <array>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"

// As in report/page/assets.cpp: the assembler takes the files in as they are.
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
namespace {

constexpr std::string_view kRecipes = "recipes/";
constexpr uint64_t kMostBytes = 1 << 20;

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

}  // namespace witan::cli
