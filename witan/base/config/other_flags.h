// What other programs that train language models call settings of ours, for users who write their names here.
#pragma once

#include <string>
#include <string_view>

#include "witan/base/text.h"

namespace witan {

// Flags of other programs, each with ours of the same meaning: --learning-rate and --lr.
OtherNames other_flags();

// The same for a key of a configuration file: lr for learning_rate; empty if no other program has such a key.
std::string other_key(std::string_view key);

}  // namespace witan
