// A configuration's fields as flags of a command: `--moe-router-topk 2` and `moe_router_topk = 2` are one thing.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "witan/base/fields.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace witan::cli {

// Whether the key's value is a list of paths, separated by commas. As a flag it may have several values too, or stand
// several times: `--data a.txt b.txt`, `--data a.txt --data b.txt`.
bool is_list(const Field& field);
// The values as one, as a configuration has it.
std::string list_of(const std::vector<std::string>& values);

// Give one to a command, and apply it when it runs:
//   struct State { RunConfig config; std::optional<ConfigArgs> args; };
//   auto state = std::make_shared<State>();
//   CLI::App* command = add_command(app, context, text, [state] { state->args->apply_file(); ... });
//   state->args.emplace(*command, state->config.fields());
class ConfigArgs {
 public:
  // Adds --config FILE.toml and a flag for every field, grouped in the help by the fields' sections, with their types
  // and present values as defaults. A true|false field takes --flag, --flag true, --flag false and --no-flag.
  // What the fields point to must outlive the command.
  ConfigArgs(CLI::App& command, Fields fields);

  // Set the fields from the file and from the flags, which come second, as they beat it; what the fields held before
  // stays where neither says anything. May be called again, after the fields were set to something else. Return the
  // keys that were set. Throw ConfigError.
  std::set<std::string> apply_file() const;
  std::set<std::string> apply_flags() const;

  std::string file() const;  // that of --config; empty: none

 private:
  struct Flag {
    Field field;
    CLI::Option* option;
    CLI::Option* negation;  // --no-flag; null unless true|false
  };

  void add_flag(CLI::App& command, const Field& field);

  Fields fields_;
  std::vector<Flag> flags_;
  CLI::Option* file_;
};

}  // namespace witan::cli
