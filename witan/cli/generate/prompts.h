// The prompts of `witan generate`: arguments, standard input, or a file of them.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "witan/tokenizer/tokenizer.h"

namespace CLI {
class App;
}

namespace witan::cli {

struct PromptArgs {
  std::vector<std::string> texts;
  std::string file;
};

void add_prompt_args(CLI::App& command, PromptArgs& args);

// At least one; without any in `args`, the empty one. A file has a prompt in each line that is not empty; one that is
// called .jsonl has JSON strings, or objects with a "prompt". Throws IoError, DataError, CorruptionError naming the
// line.
std::vector<std::string> read_prompts(const PromptArgs& args, std::FILE* in);

// An empty prompt is the end of a text: what follows it is the beginning of another. Throws UsageError where the
// tokenizer has no such token.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt);

}  // namespace witan::cli
