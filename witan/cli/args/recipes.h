// Recipes by the names that the documentation has for them, recipes/reference/dense.toml: those of the source tree,
// which an installed program has in its share folder.
#pragma once

#include <string>
#include <vector>

#include "witan/base/file.h"

namespace witan::cli {

// The folder "recipes" that belongs to this program: PREFIX/share/witan/recipes of PREFIX/bin/witan, or that of the
// source tree in which it was built. Empty where there is none.
fs::path recipes_folder();

// The path as it is if there is such a file, or if it is no path below recipes/; else the program's own recipe of that
// name. Throws ConfigError, saying where the recipes are, where there is none either; `flag`: what stands
// before the path on the command line, "--config ".
std::string find_recipe(const std::string& path, const std::string& flag);

// "recipes/default.toml" and all others of that folder that end so (".toml"), sorted.
std::vector<std::string> recipe_names(const std::string& ending);

}  // namespace witan::cli
