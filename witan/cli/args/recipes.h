// Recipes: the files of recipes/, embedded into the binary when it is built, so that the names that the documentation has
// for them, recipes/reference/dense.toml, work from any folder and wherever the binary is.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace witan::cli {

struct Recipe {
  std::string_view name;  // "recipes/reference/dense.toml"
  std::string_view text;
};

std::span<const Recipe> recipes();

// The text of the file or, for a path below recipes/ where there is no file, that of the recipe of this name. Throws
// ConfigError, naming similar recipes, if there is neither; `flag`: what stands before the path on the command line,
// "--config ".
std::string read_recipe(const std::string& path, const std::string& flag);

// "recipes/default.toml" and all others whose names end so (".toml"), sorted.
std::vector<std::string> recipe_names(std::string_view ending);

}  // namespace witan::cli
