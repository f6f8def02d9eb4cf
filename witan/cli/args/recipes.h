// Recipes: the files of recipes/, which are embedded into the binary when it is built. The names that the documentation
// uses for them, such as recipes/reference/dense.toml, therefore work from any folder. Presets are recipes of known
// models under short names: --preset NAME is the same as --config with the file.
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

struct Preset {
  std::string_view name;  // "gpt2-124m"
  std::string_view toml;  // which begins with a comment of one line: what the model is

  std::string_view summary() const;  // that line
};

std::span<const Preset> presets();
// Throws ConfigError with a suggestion for a name that there is none of.
const Preset& find_preset(std::string_view name);
// All names with their summaries, a line each, for a command's help.
std::string describe_presets();

}  // namespace witan::cli
