// The configuration of one call of `witan plan` or `witan train`, and who said what of it.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "witan/base/file.h"
#include "witan/cli/command.h"
#include "witan/cli/config_args.h"
#include "witan/train/config.h"

namespace witan::cli {

// What the help of both commands says of lists and of Megatron-LM's flags.
inline constexpr const char* kListsHelp =
    "@FILE reads flags from a file, and Megatron-LM's flags are understood: `witan help megatron`.";

// Adds --megatron and --no-megatron to a command.
void add_megatron_flag(CLI::App& command);

struct ConfigSources {
  std::optional<RunConfig> before;  // that of the run on disk, if there is one
  fs::path run;                     // its folder
  std::set<std::string> given;      // keys that the call says, by --config, flags or their meshes
  std::set<std::string> flags;      // those of them that flags say, which beat the file
};

// Sets `config`, whose flags are `args`: later beats earlier of the defaults (Megatron-LM's, if the command line is one
// of its), the run on disk, --config, and flags. Says on context.err which of Megatron-LM's defaults and flags were
// taken how. Throws ConfigError, CheckpointError.
ConfigSources read_run_config(const Context& context, RunConfig& config, const ConfigArgs& args);

// Runs `body`. A ConfigError that names values which the run on disk has said, and not this call, says so too, and by
// which flags this call could say others.
ExitCode telling_sources(const ConfigSources& sources, const std::function<ExitCode()>& body);

}  // namespace witan::cli
