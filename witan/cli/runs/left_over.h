// Folders of starts that failed before they had a run: what they made is kept for the next start of the same name.
#pragma once

#include <string>

#include "witan/base/files/file.h"

namespace witan::cli {

// What a start that failed has left in a folder without config.toml: "a lock", "a tokenizer and tokens", "a tokenizer,
// tokens and records without a step". Empty where anything else lies there, or nothing that only a start makes.
std::string left_over_of_start(const fs::path& folder);

}  // namespace witan::cli
