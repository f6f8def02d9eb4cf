// generation_config.json: how the authors of a model sample from it (Hugging Face transformers, GenerationConfig). A
// run that was imported keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

// What the file says; what it leaves out is for others to decide.
struct GenerationConfig {
  std::optional<double> temperature;  // 0 where the file says that it does not sample (do_sample = false)
  std::optional<int64_t> top_k;
  std::optional<double> top_p, min_p, repetition_penalty;
  std::optional<int64_t> max_new_tokens;
  std::vector<int32_t> stop_tokens;  // eos_token_id: one or several; each ends a text
  // "KEY = VALUE" of what would change which tokens are drawn, and is none of the above.
  std::vector<std::string> unsupported;
};

// Nothing where there is no such file. Throws IoError, and CorruptionError naming the key for what is not as expected.
GenerationConfig read_generation_config(const fs::path& file);

// A prompt in each line that is not empty; of a file that is called .jsonl, each line is a JSON string or an object
// with a "prompt". At least one. Throws IoError, DataError, CorruptionError naming the line.
std::vector<std::string> read_prompt_file(const fs::path& file);

}  // namespace witan
