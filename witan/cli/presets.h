// Recipes of known models by short names: --preset NAME says the same as --config with the file.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace witan::cli {

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
