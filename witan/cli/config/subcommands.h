// The subcommands of `witan config`, each in the file of its name.
#pragma once

#include "witan/cli/command.h"

namespace witan::cli {

void add_config_diff(CLI::App& config, Context& context);
void add_config_show(CLI::App& config, Context& context);

}  // namespace witan::cli
