// What other programs that train language models call flags and commands of ours, for users who type their names here.
#pragma once

#include <string>
#include <string_view>

#include "witan/base/config/other_flags.h"

namespace witan::cli {

// "a run is resumed by its name: …" of a flag of training that has no equal here, with - or _; empty for others.
std::string way_instead(std::string_view flag);

// The one of these flags that the flag is a slip of; empty: of none.
std::string nearest_way(std::string_view flag);

// What other programs call commands of ours, each with that.
OtherNames other_commands();

}  // namespace witan::cli
