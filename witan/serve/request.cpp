#include "witan/serve/request.h"

#include <limits>

#include "witan/base/error.h"
#include "witan/serve/api_error.h"
#include "witan/serve/request_members.h"

namespace witan::serve {
namespace {

using nlohmann::json;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

// A string, a list of strings.
std::vector<std::string> parse_stop(RequestMembers& members) {
  const json* value = members.any("stop");
  std::vector<std::string> stops;
  if (!value) return stops;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty())
      throw ApiError(400, "stop must be a string or a list of strings, none of them empty", "stop", "invalid_value");
    stops.push_back(stop);
  }
  if (static_cast<int64_t>(stops.size()) > kMostStops)
    throw ApiError(400, cat("stop has ", stops.size(), " strings, but at most ", kMostStops, " are allowed"), "stop",
                   "invalid_value");
  return stops;
}

bool parse_include_usage(RequestMembers& members) {
  const json* options = members.any("stream_options");
  if (!options) return false;
  const auto usage = options->is_object() ? options->find("include_usage") : options->end();
  if (!options->is_object() || (usage != options->end() && !usage->is_boolean()))
    throw ApiError(400, "stream_options must be an object such as {\"include_usage\": true}", "stream_options",
                   "invalid_value");
  return usage != options->end() && usage->get<bool>();
}

// What changes nothing, at the values at which it changes nothing here.
void parse_unsupported(RequestMembers& members) {
  constexpr const char* kPenalty = "of penalties this server has repetition_penalty";
  members.neutral("presence_penalty", {0, 0.0}, kPenalty);
  members.neutral("frequency_penalty", {0, 0.0}, kPenalty);
  members.neutral("logit_bias", {json::object()}, "this server does not change the model's logits");
  for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
    members.ignore(name);
}

void parse_sampling(RequestMembers& members, SamplingRequest& request) {
  request.model = members.text("model").value_or("");
  request.max_tokens = members.integer("max_tokens", 0, kMost);
  request.temperature = members.number("temperature", 0, 100);
  request.top_p = members.number("top_p", 0, 1);
  if (request.top_p == 0.0) request.top_p = std::numeric_limits<double>::min();  // the likeliest token alone
  request.repetition_penalty = members.number("repetition_penalty", 0.01, 100);
  request.top_k = members.integer("top_k", -1, kMost);
  if (request.top_k == -1) request.top_k = 0;  // as others say: all
  if (const auto seed =
          members.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()))
    request.seed = static_cast<uint64_t>(*seed);
  request.stop = parse_stop(members);
  request.n = members.integer("n", 1, kMostChoices).value_or(1);
  request.stream = members.boolean("stream").value_or(false);
  request.include_usage = parse_include_usage(members);
  parse_unsupported(members);
}

bool is_token_list(const json& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

std::vector<int32_t> parse_tokens(const json& list) {
  std::vector<int32_t> tokens;
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > kMost)
      throw ApiError(400, "prompt: a list of token ids has a member that is no id", "prompt", "invalid_value");
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

CompletionRequest::Prompt parse_prompt(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (is_token_list(value)) return parse_tokens(value);
  throw ApiError(400, "prompt must be a string, a list of strings, a list of token ids or a list of such lists",
                 "prompt", "invalid_value");
}

std::vector<CompletionRequest::Prompt> parse_prompts(RequestMembers& members) {
  const json* value = members.any("prompt");
  if (!value) throw ApiError(400, "the request has no prompt", "prompt", "missing_required_parameter");
  if (!value->is_array() || is_token_list(*value)) return {parse_prompt(*value)};
  if (value->empty() || static_cast<int64_t>(value->size()) > kMostPrompts)
    throw ApiError(400, cat("prompt is a list of ", value->size(), ", but it must have 1 to ", kMostPrompts), "prompt",
                   "invalid_value");
  std::vector<CompletionRequest::Prompt> prompts;
  for (const json& prompt : *value) prompts.push_back(parse_prompt(prompt));
  return prompts;
}

// A string, or parts {"type": "text", "text": …}.
std::string parse_content(const json& content, size_t message) {
  if (content.is_string()) return content;
  std::string text;
  for (const json& part : content.is_array() ? content : json::array({nullptr})) {
    const bool is_text =
        part.is_object() && part.value("type", json()) == "text" && part.contains("text") && part["text"].is_string();
    if (!is_text)
      throw ApiError(400, cat("messages[", message, "].content must be a string or a list of parts of type text"),
                     "messages", "invalid_value");
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

json parse_messages(RequestMembers& members) {
  const json* given = members.any("messages");
  if (!given) throw ApiError(400, "the request has no messages", "messages", "missing_required_parameter");
  if (!given->is_array() || given->empty())
    throw ApiError(400, "messages must be a list of at least one message", "messages", "invalid_value");
  json messages = *given;
  for (size_t i = 0; i < messages.size(); ++i) {
    json& message = messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
      throw ApiError(400, cat("messages[", i, "] must be an object with a role and a content"), "messages",
                     "invalid_value");
    for (const char* calls : {"tool_calls", "function_call"})
      if (message.contains(calls) && !message[calls].empty())
        throw ApiError(400, cat("messages[", i, "].", calls, " is not supported: this server calls no tools"),
                       "messages", "unsupported_value");
    message["content"] = parse_content(message.contains("content") ? message["content"] : json(), i);
  }
  return messages;
}

void parse_chat_unsupported(RequestMembers& members) {
  constexpr const char* kTools = "this server calls no tools";
  members.neutral("tools", {json::array()}, kTools);
  members.neutral("functions", {json::array()}, kTools);
  members.neutral("tool_choice", {"none", "auto"}, kTools);
  members.neutral("function_call", {"none", "auto"}, kTools);
  members.neutral("response_format", {json{{"type", "text"}}}, "answers are plain text");
  members.neutral("modalities", {json::array({"text"})}, "answers are plain text");
  members.ignore("parallel_tool_calls");
}

}  // namespace

CompletionRequest parse_completion_request(std::string_view body) {
  RequestMembers members(body);
  CompletionRequest request;
  parse_sampling(members, request);
  request.prompts = parse_prompts(members);
  request.echo = members.boolean("echo").value_or(false);
  request.top_logprobs = members.integer("logprobs", 0, kMostTopLogprobs).value_or(-1);
  members.neutral("suffix", {""}, "the model continues a prompt, it does not fill gaps");
  members.neutral("best_of", {1, request.n}, "each choice is sampled once");
  members.finish();
  if (request.stream && request.echo && request.top_logprobs >= 0)
    throw ApiError(400, "echo with logprobs cannot be streamed: set stream to false", "stream", "unsupported_value");
  return request;
}

ChatRequest parse_chat_request(std::string_view body) {
  RequestMembers members(body);
  ChatRequest request;
  parse_sampling(members, request);
  if (const auto most = members.integer("max_completion_tokens", 0, kMost)) request.max_tokens = most;
  request.messages = parse_messages(members);
  const auto top = members.integer("top_logprobs", 0, kMostTopLogprobs);
  const bool logprobs = members.boolean("logprobs").value_or(false);
  if (top && !logprobs) throw ApiError(400, "top_logprobs needs logprobs = true", "top_logprobs", "invalid_value");
  if (logprobs) request.top_logprobs = top.value_or(0);
  parse_chat_unsupported(members);
  members.finish();
  return request;
}

}  // namespace witan::serve
