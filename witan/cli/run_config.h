// The configuration of one call of `witan plan` or `witan train`, and who said what of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "witan/base/file.h"
#include "witan/cli/command.h"
#include "witan/cli/config_args.h"
#include "witan/train/run/config.h"

namespace witan::cli {

// What the help of both commands says of lists and of Megatron-LM's flags.
inline constexpr const char* kListsHelp =
    "@FILE reads flags from a file, and Megatron-LM's flags are understood: `witan help megatron`.";

// Adds --megatron and --no-megatron to a command.
void add_megatron_flag(CLI::App& command);

struct ConfigSources {
  std::optional<RunConfig> before;   // that of the run on disk, if there is one
  fs::path run;                      // its folder
  std::vector<std::string> changes;  // of what makes it the same run (changed_identity)
  std::set<std::string> given;       // keys that the call says, by --config, flags or their meshes
  std::set<std::string> flags;       // those of them that flags say, which beat the file
};

// What to do with the run on disk where this call asks for another one, which `witan train` refuses to resume it as.
enum class OtherRun : uint8_t {
  keep,   // its configuration holds where the call says nothing
  leave,  // the call stands alone, as it would with a new --run NAME; this is said on context.err
};

// Sets `config`, whose flags are `args`: later beats earlier of the defaults (Megatron-LM's, if the command line is one
// of its), the run on disk, --config, and flags. Says on context.err which of Megatron-LM's defaults and flags were
// taken how. Throws ConfigError, CheckpointError.
ConfigSources read_run_config(const Context& context, RunConfig& config, const ConfigArgs& args,
                              OtherRun other = OtherRun::keep);

// Runs `body`. A ConfigError that names values which the run on disk has said, and not this call, says so too, and by
// which flags this call could say others.
ExitCode telling_sources(const ConfigSources& sources, const std::function<ExitCode()>& body);

}  // namespace witan::cli
