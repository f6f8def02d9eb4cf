// Files of prompts.
#pragma once

#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

// A prompt in each line that is not empty; of a file that is called .jsonl, each line is a JSON string or an object
// with a "prompt". At least one. Throws IoError, DataError, CorruptionError naming the line.
std::vector<std::string> read_prompt_file(const fs::path& file);

}  // namespace witan
