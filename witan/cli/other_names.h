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

}  // namespace witan::cli
