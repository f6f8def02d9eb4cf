// witan config: configurations as they are given, with the source of every value, and their differences.
#include "witan/cli/commands.h"
#include "witan/cli/config/subcommands.h"

namespace witan::cli {

void add_config(CLI::App& app, Context& context) {
  CLI::App* const config =
      add_group(app, {"config", "Show a configuration with the source of every value, or the difference of two", "",
                      "witan config show --preset gpt2-124m --changed\nwitan config diff base tuned"});
  add_config_show(*config, context);
  add_config_diff(*config, context);
}

}  // namespace witan::cli
