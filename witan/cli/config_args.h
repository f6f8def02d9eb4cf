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

// Give one to a command, and call apply() when it runs:
//   struct State { RunConfig config; std::optional<ConfigArgs> args; };
//   auto state = std::make_shared<State>();
//   CLI::App* command = add_command(app, context, text, [state] { state->args->apply(); ... });
//   state->args.emplace(*command, state->config.fields());
class ConfigArgs {
 public:
  // Adds --config FILE.toml and a flag for every field, grouped in the help by the fields' sections, with their types
  // and present values as defaults. A true|false field takes --flag, --flag true, --flag false and --no-flag.
  // What the fields point to must outlive the command.
  ConfigArgs(CLI::App& command, Fields fields);

  // Sets the fields from the file, then from the flags: what they held before stays where neither says anything. May be
  // called again, after the fields were set to something else. Returns the keys that either sets. Throws ConfigError.
  std::set<std::string> apply() const;

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
