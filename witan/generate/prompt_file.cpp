#include "witan/generate/prompt_file.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "witan/base/error.h"
#include "witan/base/json.h"

namespace witan {
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

}  // namespace

std::vector<std::string> read_prompt_file(const fs::path& file) {
  std::vector<std::string> prompts;
  std::string bytes = read_file(file);
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.erase(0, 3);  // a byte order mark
  std::istringstream text(std::move(bytes));
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

}  // namespace witan
