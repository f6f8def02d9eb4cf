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

// The text of the file or, if there is no such file, of the embedded recipe with this name. Throws ConfigError, naming
// similar recipes, if there is neither. `flag`: the flag before the path, for the message: "--config ".
std::string read_recipe(const std::string& path, const std::string& flag);

// The names of all recipes that end in `ending` (".toml"), sorted: "recipes/default.toml" …
std::vector<std::string> recipe_names(std::string_view ending);

struct Preset {
  std::string_view name;  // "gpt2-124m"
  std::string_view toml;  // its first line is a comment that says what the model is

  std::string_view summary() const;  // the text of that comment
};

std::span<const Preset> presets();
// Throws ConfigError with a suggestion for an unknown name.
const Preset& find_preset(std::string_view name);
// All presets with their summaries, one per line, for a command's help.
std::string describe_presets();

}  // namespace witan::cli
