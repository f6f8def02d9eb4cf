// Scripts that complete witan's command lines in a shell: commands, flags, choices, presets, names of runs and files.
#pragma once

#include <string>

#include "witan/cli/help/described_commands.h"

namespace witan::cli {

// Names of runs are those of the folder runs/ where the shell stands.
std::string bash_completions(const DescribedCommand& app);
std::string zsh_completions(const DescribedCommand& app);
std::string fish_completions(const DescribedCommand& app);

}  // namespace witan::cli
