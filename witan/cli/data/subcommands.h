// The subcommands of `witan data`, each in the file of its name.
#pragma once

#include "witan/cli/command.h"

namespace witan::cli {

void add_data_dedup(CLI::App& data, Context& context);
void add_data_fetch(CLI::App& data, Context& context);
void add_data_inspect(CLI::App& data, Context& context);
void add_data_merge(CLI::App& data, Context& context);
void add_data_prepare(CLI::App& data, Context& context);
void add_data_shuffle(CLI::App& data, Context& context);
void add_data_split(CLI::App& data, Context& context);
void add_data_stats(CLI::App& data, Context& context);

}  // namespace witan::cli
