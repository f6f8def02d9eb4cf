// The names that other programs for training language models give to our settings, for users who write those names
// here.
#pragma once

#include <string>
#include <string_view>

#include "witan/base/text.h"

namespace witan {

// Flags of other programs, each with ours of the same meaning: --learning-rate and --lr.
OtherNames other_flags();

// Our key for a key of another program's configuration file: lr for learning_rate; empty if no program has it.
std::string other_key(std::string_view key);

}  // namespace witan
