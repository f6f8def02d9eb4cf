// The configuration of one call of `witan plan` or `witan train`.
#pragma once

#include <optional>
#include <string>

#include "witan/cli/command.h"
#include "witan/cli/config_args.h"
#include "witan/train/config.h"

namespace witan::cli {

// What the help of both commands says of lists and of Megatron-LM's flags.
inline constexpr const char* kListsHelp =
    "@FILE reads flags from a file, and Megatron-LM's flags are understood: `witan help megatron`.";

// Adds --megatron and --no-megatron to a command.
void add_megatron_flag(CLI::App& command);

// Sets `config`, whose flags are `args`: later beats earlier of the defaults (Megatron-LM's, if the command line is one
// of its), the run on disk, --config, and flags. Returns the configuration of the run on disk, if there is one. Says on
// context.err which of Megatron-LM's defaults and flags were taken how. Throws ConfigError, CheckpointError.
std::optional<RunConfig> read_run_config(const Context& context, RunConfig& config, const ConfigArgs& args);

}  // namespace witan::cli
