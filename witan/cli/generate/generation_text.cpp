#include "witan/cli/generate/generation_text.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "witan/base/text.h"

namespace witan::cli {
namespace {

// As in JSON: line breaks and quotes escaped.
std::string quoted(const Tokenizer& tokenizer, int32_t id) {
  return nlohmann::json(replace_invalid_utf8(tokenizer.token_bytes(id))).dump();
}

}  // namespace

std::string generation_json(const std::string& prompt, const std::string& text, const Generation& generation,
                            bool stopped) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["prompt"] = replace_invalid_utf8(prompt);
  json["text"] = text;
  json["tokens"] = nlohmann::ordered_json::array();
  for (const GeneratedToken& token : generation.tokens) {
    json["tokens"].push_back(token.token);
    if (!token.logprob) continue;
    json["logprobs"].push_back(*token.logprob);
    if (token.top.empty()) continue;
    nlohmann::ordered_json likely = nlohmann::ordered_json::array();
    for (const TokenLogprob& other : token.top) {
      nlohmann::ordered_json pair = nlohmann::ordered_json::array();
      pair.push_back(other.token);
      pair.push_back(other.logprob);
      likely.push_back(std::move(pair));
    }
    json["top_logprobs"].push_back(std::move(likely));
  }
  json["finish_reason"] = stopped || generation.finish == Finish::stop ? "stop" : "length";
  return json.dump();
}

std::string logprob_table(const Tokenizer& tokenizer, const std::vector<GeneratedToken>& tokens) {
  std::string table;
  for (const GeneratedToken& token : tokens) {
    table += fmt::format("{:>9.4f}  {}", token.logprob.value_or(0), quoted(tokenizer, token.token));
    for (const TokenLogprob& likely : token.top)
      table += fmt::format("  {:.4f} {}", likely.logprob, quoted(tokenizer, likely.token));
    table += "\n";
  }
  return table;
}

}  // namespace witan::cli
