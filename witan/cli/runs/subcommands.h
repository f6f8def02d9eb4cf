// The subcommands of `witan runs`, each in the file of its name.
#pragma once

#include "witan/cli/command.h"

namespace witan::cli {

void add_runs_compare(CLI::App& runs, Context& context);
void add_runs_remove(CLI::App& runs, Context& context);
void add_runs_snapshot(CLI::App& runs, Context& context);

}  // namespace witan::cli
