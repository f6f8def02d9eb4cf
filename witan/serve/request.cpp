#include "witan/serve/request.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "witan/base/error.h"
#include "witan/base/json.h"
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

// {"TOKEN": BIAS}, as OpenAI's API bounds it.
std::map<int32_t, double> parse_logit_bias(RequestMembers& members) {
  const json* value = members.any("logit_bias");
  std::map<int32_t, double> biases;
  if (!value) return biases;
  const auto refuse = [](const std::string& what) {
    throw ApiError(400, cat("logit_bias must be an object such as {\"50256\": -100}: ", what), "logit_bias",
                   "invalid_value");
  };
  if (!value->is_object()) refuse("it must be an object");
  if (static_cast<int64_t>(value->size()) > kMostBiases)
    refuse(cat("it has ", value->size(), " tokens, but at most ", kMostBiases, " are allowed"));
  for (const auto& [name, bias] : value->items()) {
    int32_t token = 0;
    const char* end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data(), end, token);
    if (error != std::errc() || at != end || token < 0) refuse("each name must be a token id");
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100))
      refuse("each bias must be a number from -100 to 100");
    biases[token] = bias.get<double>();
  }
  return biases;
}

// What changes nothing.
void ignore_information(RequestMembers& members) {
  for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
    members.ignore(name);
}

void parse_sampling(RequestMembers& members, SamplingRequest& request) {
  request.model = members.text("model").value_or("");
  request.max_tokens = members.integer("max_tokens", 0, kMost);
  request.temperature = members.number("temperature", 0, 100);
  request.top_p = members.number("top_p", 0, 1);
  if (request.top_p == 0.0) request.top_p = std::numeric_limits<double>::min();  // the likeliest token alone
  request.min_p = members.number("min_p", 0, 1);
  request.repetition_penalty = members.number("repetition_penalty", 0.01, 100);
  request.presence_penalty = members.number("presence_penalty", -2, 2).value_or(0);
  request.frequency_penalty = members.number("frequency_penalty", -2, 2).value_or(0);
  request.logit_bias = parse_logit_bias(members);
  request.top_k = members.integer("top_k", -1, kMost);
  if (request.top_k == -1) request.top_k = 0;  // as others say: all
  if (const auto seed =
          members.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()))
    request.seed = static_cast<uint64_t>(*seed);
  request.stop = parse_stop(members);
  request.best_of = request.n = members.integer("n", 1, kMostChoices).value_or(1);
  request.stream = members.boolean("stream").value_or(false);
  request.include_usage = parse_include_usage(members);
  ignore_information(members);
}

bool is_token_list(const json& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

std::vector<int32_t> parse_tokens(const json& list) {
  std::vector<int32_t> tokens;
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > kMost)
      throw ApiError(400, "prompt: every member of a list of token ids must be a token id", "prompt", "invalid_value");
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

using Ordered = nlohmann::ordered_json;

[[noreturn]] void refuse_chat(const char* member, const std::string& message) {
  throw ApiError(400, message, member, "invalid_value");
}

bool has_text(const Ordered& object, const char* member) {
  return object.is_object() && object.contains(member) && object[member].is_string();
}

// A string, or parts {"type": "text", "text": …}.
std::string parse_content(const Ordered& content, size_t message) {
  if (content.is_string()) return content;
  std::string text;
  for (const Ordered& part : content.is_array() ? content : Ordered::array({nullptr})) {
    if (!has_text(part, "type") || part["type"] != "text" || !has_text(part, "text"))
      refuse_chat("messages", cat("messages[", message, "].content must be a string or a list of parts of type text"));
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Their arguments are JSON in a string: what the model says, which templates write as what it is.
void parse_tool_calls(Ordered& calls, size_t message) {
  const auto refuse = [&](const std::string& what) {
    refuse_chat("messages", cat("messages[", message,
                                "].tool_calls must be a list of {\"id\", \"type\": \"function\", "
                                "\"function\": {\"name\", \"arguments\"}}: ",
                                what));
  };
  if (!calls.is_array()) refuse("it must be a list");
  for (Ordered& call : calls) {
    if (!call.is_object() || !call.contains("function") || !has_text(call["function"], "name") ||
        !has_text(call["function"], "arguments"))
      refuse("a call has no function with a name and arguments");
    Ordered& arguments = call["function"]["arguments"];
    const std::string text = arguments;
    try {
      parse_json(text, "arguments", 32);
    } catch (const CorruptionError& error) {
      refuse(error.what());
    }
    arguments = Ordered::parse(text);
    if (!arguments.is_object()) refuse("arguments must be a JSON object in a string");
  }
}

void parse_messages(RequestMembers& members, ChatRequest& request) {
  request.messages = members.ordered("messages");
  if (request.messages.is_null())
    throw ApiError(400, "the request has no messages", "messages", "missing_required_parameter");
  if (!request.messages.is_array() || request.messages.empty())
    refuse_chat("messages", "messages must be a list of at least one message");
  for (size_t i = 0; i < request.messages.size(); ++i) {
    Ordered& message = request.messages[i];
    if (!has_text(message, "role"))
      refuse_chat("messages", cat("messages[", i, "] must be an object with a role and a content"));
    if (message.contains("function_call") && !message["function_call"].empty())
      throw ApiError(400, cat("messages[", i, "].function_call is not supported: use tool_calls"), "messages",
                     "unsupported_value");
    const bool calls = message.contains("tool_calls") && !message["tool_calls"].empty();
    if (calls) parse_tool_calls(message["tool_calls"], i);
    request.speaks_of_tools |= calls || message["role"] == "tool";
    const bool silent = calls && (!message.contains("content") || message["content"].is_null());
    message["content"] = silent ? "" : parse_content(message.contains("content") ? message["content"] : Ordered(), i);
  }
}

// With tool_choice = "none" there are none.
void parse_tools(RequestMembers& members, ChatRequest& request) {
  Ordered tools = members.ordered("tools");
  members.neutral("tool_choice", {"none", "auto"}, "the model itself decides whether to call a tool");
  const json* choice = members.any("tool_choice");
  const auto parallel = members.boolean("parallel_tool_calls");
  if (tools.is_null()) return;
  if (!tools.is_array()) refuse_chat("tools", "tools must be a list");
  if (tools.empty() || (choice && *choice == "none")) return;
  for (size_t i = 0; i < tools.size(); ++i) {
    const bool is_function = has_text(tools[i], "type") && tools[i]["type"] == "function" &&
                             tools[i].contains("function") && has_text(tools[i]["function"], "name");
    if (!is_function)
      refuse_chat("tools", cat("tools[", i, "] must be {\"type\": \"function\", \"function\": {\"name\": …}}"));
    if (const auto strict = tools[i]["function"].find("strict");
        strict != tools[i]["function"].end() && *strict == true)
      throw ApiError(400, cat("tools[", i, "].function.strict is not supported: the model may depart from the schema"),
                     "tools", "unsupported_value");
  }
  if (parallel == false)
    throw ApiError(400, "parallel_tool_calls = false is not supported: the model may make several calls",
                   "parallel_tool_calls", "unsupported_value");
  request.tools = std::move(tools);
  request.speaks_of_tools = true;
}

// Names of a template that are not for requests to set.
void parse_template_variables(RequestMembers& members, ChatRequest& request) {
  constexpr const char* kName = "chat_template_kwargs";
  request.template_variables = members.ordered(kName);
  if (request.template_variables.is_null()) return;
  if (!request.template_variables.is_object()) refuse_chat(kName, cat(kName, " must be an object"));
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})
    if (request.template_variables.contains(name)) refuse_chat(kName, cat(kName, " must not set ", name));
}

void parse_chat_unsupported(RequestMembers& members) {
  members.neutral("functions", {json::array()}, "use tools");
  members.neutral("function_call", {"none", "auto"}, "use tool_choice");
  members.neutral("response_format", {json{{"type", "text"}}}, "answers are plain text");
  members.neutral("modalities", {json::array({"text"})}, "answers are plain text");
}

int64_t parse_best_of(RequestMembers& members, const SamplingRequest& request) {
  const int64_t best_of = members.integer("best_of", 1, kMostChoices).value_or(request.n);
  if (best_of < request.n)
    throw ApiError(400, cat("best_of = ", best_of, " is less than n = ", request.n), "best_of", "invalid_value");
  if (request.stream && best_of > request.n)
    throw ApiError(400, cat("best_of = ", best_of, " cannot be streamed: the best choices are known only at the end"),
                   "best_of", "unsupported_value");
  return best_of;
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
  request.best_of = parse_best_of(members, request);
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
  parse_messages(members, request);
  parse_tools(members, request);
  parse_template_variables(members, request);
  const auto top = members.integer("top_logprobs", 0, kMostTopLogprobs);
  const bool logprobs = members.boolean("logprobs").value_or(false);
  if (top && !logprobs) throw ApiError(400, "top_logprobs needs logprobs = true", "top_logprobs", "invalid_value");
  if (logprobs) request.top_logprobs = top.value_or(0);
  parse_chat_unsupported(members);
  members.finish();
  return request;
}

}  // namespace witan::serve
