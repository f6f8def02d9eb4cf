// A configuration's fields as flags of a command: `--moe-router-topk 2` and `moe_router_topk = 2` mean the same.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace witan::cli {

// Whether the key's value is a list of paths, separated by commas. As a flag it may also have several values, or be
// repeated: `--data a.txt b.txt`, `--data a.txt --data b.txt`.
bool is_list(const Field& field);
// The values joined into one, as in a configuration.
std::string list_of(const std::vector<std::string>& values);

// A flag of a command for every field. A boolean field takes --flag, --flag true, --flag false and --no-flag.
class FieldFlags {
 public:
  // They are grouped in the help by the fields' sections, with their types and their current values as defaults. The
  // targets of the fields must outlive the command.
  FieldFlags(CLI::App& command, const Fields& fields);

  // Sets the fields whose flags were given, and returns their keys; others keep their values. Throws ConfigError.
  std::set<std::string> apply() const;

 private:
  struct Flag {
    Field field;
    CLI::Option* option;
    CLI::Option* negation;  // --no-flag; null unless true|false
  };

  void add(CLI::App& command, const Field& field);

  std::vector<Flag> flags_;
};

// The flags of a configuration's fields, and the preset and the file that set them too. RunConfigArgs
// (args/run_config.h) gives one to a command, and applies it when the command runs.
class ConfigArgs {
 public:
  // Adds --preset NAME (args/recipes.h), --config FILE.toml and the fields' flags.
  ConfigArgs(CLI::App& command, Fields fields);

  // Set the fields from the preset, then from the file and then from the flags: each overrides those before it. Fields
  // that none sets keep their values. May be called again, after the fields were set to something else. Return the keys
  // that were set. Throw ConfigError.
  std::set<std::string> apply_preset() const;
  std::set<std::string> apply_file() const;
  std::set<std::string> apply_flags() const { return flags_.apply(); }

  // The lines on which the preset and the file set their keys.
  std::map<std::string, int64_t> preset_lines() const;
  std::map<std::string, int64_t> file_lines() const;

  std::string preset() const;  // the value of --preset; empty: none
  std::string file() const;    // the file of --config, as it was found (args/recipes.h); empty: none

 private:
  Fields fields_;
  CLI::Option *preset_, *file_;
  FieldFlags flags_;
};

}  // namespace witan::cli
