// Files that generation reads: generation_config.json, and prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

// generation_config.json: how a model's authors sample from it (Hugging Face transformers, GenerationConfig). An
// imported run keeps the file. Values that it leaves out are for the caller to decide.
struct GenerationConfig {
  std::optional<double> temperature;  // 0 if the file disables sampling (do_sample = false)
  std::optional<int64_t> top_k;
  std::optional<double> top_p, min_p, repetition_penalty;
  std::optional<int64_t> max_new_tokens;
  std::vector<int32_t> stop_tokens;  // eos_token_id: one or several tokens, each of which ends a text
  // "KEY = VALUE" of other settings that would change which tokens are drawn.
  std::vector<std::string> unsupported;
};

// Everything is empty if there is no such file. Throws IoError, and CorruptionError naming the key of an invalid value.
GenerationConfig read_generation_config(const fs::path& file);

// Reads a file of prompts, one per non-empty line; in a file named *.jsonl each line is a JSON string or an object with
// a "prompt". There must be at least one. Throws IoError, DataError, and CorruptionError naming the line.
std::vector<std::string> read_prompt_file(const fs::path& file);

}  // namespace witan
