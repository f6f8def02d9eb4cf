#include <fmt/core.h>

#include <algorithm>

#include "witan/base/text.h"
#include "witan/serve/answer.h"

namespace witan::serve {
namespace {

using nlohmann::json;

// JSON has no infinity; OpenAI's servers use this number instead.
double finite_logprob(float logprob) {
  return std::max(static_cast<double>(logprob), -9999.0);
}

std::string token_key(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (find_invalid_utf8(bytes) == std::string_view::npos) return std::string(bytes);
  std::string key = "bytes:";
  for (const char byte : bytes) key += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return key;
}

json chat_token(const Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  json numbers = json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  json token = json::object();
  token["token"] = replace_invalid_utf8(bytes);
  token["logprob"] = finite_logprob(logprob);
  token["bytes"] = std::move(numbers);
  return token;
}

}  // namespace

json completion_logprobs(const Tokenizer& tokenizer, const std::vector<PlacedToken>& tokens, int64_t top_logprobs) {
  json names = json::array(), logprobs = json::array(), tops = json::array(), offsets = json::array();
  for (const auto& [token, offset] : tokens) {
    names.push_back(token_key(tokenizer, token.token));
    offsets.push_back(offset);
    logprobs.push_back(token.logprob ? json(finite_logprob(*token.logprob)) : json());
    json top;  // null for the first token of a text, which nothing predicts
    if (token.logprob) {
      top = json::object();
      for (const TokenLogprob& likely : token.top)
        top.emplace(token_key(tokenizer, likely.token), finite_logprob(likely.logprob));
      top[names.back().get_ref<const std::string&>()] = logprobs.back();
    }
    tops.push_back(std::move(top));
  }
  json out = json::object();
  out["tokens"] = std::move(names);
  out["token_logprobs"] = std::move(logprobs);
  out["top_logprobs"] = top_logprobs > 0 ? std::move(tops) : json();
  out["text_offset"] = std::move(offsets);
  return out;
}

json chat_logprobs(const Tokenizer& tokenizer, const std::vector<PlacedToken>& tokens) {
  json content = json::array();
  for (const auto& [token, offset] : tokens) {
    json top = json::array();
    for (const TokenLogprob& likely : token.top) top.push_back(chat_token(tokenizer, likely.token, likely.logprob));
    json entry = chat_token(tokenizer, token.token, token.logprob.value_or(0));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  json out = json::object();
  out["content"] = std::move(content);
  return out;
}

json tool_calls_json(const std::vector<ToolCall>& calls, const std::string& id, bool chunk) {
  json list = json::array();
  for (const ToolCall& call : calls) {
    json entry = json::object();
    if (chunk) entry["index"] = list.size();
    entry["id"] = fmt::format("{}-{}", id, list.size());
    entry["type"] = "function";
    entry["function"]["name"] = call.name;
    entry["function"]["arguments"] = call.arguments;
    list.push_back(std::move(entry));
  }
  return list;
}

json Usage::json() const {
  nlohmann::json out = nlohmann::json::object();
  out["prompt_tokens"] = prompt_tokens;
  out["completion_tokens"] = completion_tokens;
  out["total_tokens"] = prompt_tokens + completion_tokens;
  if (cached_tokens > 0) out["prompt_tokens_details"]["cached_tokens"] = cached_tokens;
  return out;
}

}  // namespace witan::serve
