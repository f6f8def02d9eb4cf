// What other programs that train language models call flags of ours, for who types one here.
#pragma once

#include <string>
#include <string_view>

#include "witan/base/text.h"

namespace witan::cli {

// The flags that are the same as one of ours, each with that.
OtherNames other_flags();

// "a run is resumed by its name: …" of a flag of training that has no equal here, with - or _; empty for others.
std::string way_instead(std::string_view flag);

// The one of these flags that the flag is a slip of; empty: of none.
std::string nearest_way(std::string_view flag);

// What other programs call commands of ours, each with that.
OtherNames other_commands();

}  // namespace witan::cli
