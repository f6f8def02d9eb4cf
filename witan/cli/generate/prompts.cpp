#include "witan/cli/generate/prompts.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "witan/base/error.h"
#include "witan/base/file.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/train/input.h"

namespace witan::cli {
namespace {

std::string prompt_of_json(const std::string& line, const std::string& where) {
  const Json json = parse_json(line, where);
  const Json* prompt = &json;
  if (json.is_object()) {
    const auto at = json.find("prompt");
    prompt = at == json.end() ? nullptr : &*at;
  }
  require<DataError>(prompt && prompt->is_string(), where,
                     ": a string or an object with a string \"prompt\" is expected");
  return *prompt;
}

std::vector<std::string> prompts_of_file(const fs::path& file) {
  std::vector<std::string> prompts;
  std::istringstream text(read_file(file));
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::string where = cat(file.string(), ":", number);
    prompts.push_back(file.extension() == ".jsonl" ? prompt_of_json(line, where) : line);
  }
  require<DataError>(!prompts.empty(), file.string(), " has no prompts: it needs one in each line");
  return prompts;
}

}  // namespace

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
    const auto more = prompts_of_file(args.file);
    prompts.insert(prompts.end(), more.begin(), more.end());
  }
  if (prompts.empty()) prompts.emplace_back();
  return prompts;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  auto tokens = tokenizer.encode(prompt);
  if (!tokens.empty()) return tokens;
  const auto end_of_text = tokenizer.end_of_text();
  require<UsageError>(end_of_text.has_value(),
                      "witan generate: this run's tokenizer has no end-of-text token to start from: give a prompt");
  return {*end_of_text};
}

}  // namespace witan::cli
