// The names that other training programs have for Witan's flags and commands, to help users who type them.
#pragma once

#include <string>
#include <string_view>

#include "witan/base/config/other_flags.h"

namespace witan::cli {

// The flag with dashes instead of underscores: --num-layers for --num_layers. Other words stay as they are.
std::string with_dashes(std::string flag);

// For a training flag of another program that Witan lacks, how to do the same: "a run is resumed by its name: …". Empty
// for other flags.
std::string way_instead(std::string_view flag);

// The flag with such an answer that `flag` is probably a misspelling of; empty: none.
std::string nearest_way(std::string_view flag);

// Names of commands in other programs, each with Witan's name.
OtherNames other_commands();

}  // namespace witan::cli
