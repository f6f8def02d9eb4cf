#include "witan/cli/generate/prompts.h"

#include "witan/base/error.h"
#include "witan/cli/args/options.h"
#include "witan/cli/train/input.h"
#include "witan/generate/input_files.h"

namespace witan::cli {

void add_prompt_args(CLI::App& command, PromptArgs& args) {
  add_option(command, "texts", args.texts,
             "Texts to continue; `-` reads one from standard input; none: start a new text")
      .type_name("TEXT");
  add_option(command, "--prompts", args.file, "Continue each line of FILE; of a .jsonl file, each line's \"prompt\"")
      .type_name("FILE");
}

std::vector<std::string> read_prompts(const PromptArgs& args, std::FILE* in) {
  std::vector<std::string> prompts = args.texts;
  for (std::string& prompt : prompts)
    if (prompt == "-") prompt = read_all(in);
  if (!args.file.empty()) {
    const auto more = read_prompt_file(args.file);
    prompts.insert(prompts.end(), more.begin(), more.end());
  }
  if (prompts.empty()) prompts.emplace_back();
  return prompts;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  auto tokens = tokenizer.encode_prompt(prompt);
  if (!tokens.empty()) return tokens;
  const auto end_of_text = tokenizer.end_of_text();
  require<UsageError>(end_of_text.has_value(),
                      "witan generate: this run's tokenizer has no end-of-text token to start from: give a prompt");
  return {*end_of_text};
}

}  // namespace witan::cli
