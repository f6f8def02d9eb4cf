#include "witan/serve/request.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/serve/request_members.h"
#include "witan/tokenizer/chat/chat_template.h"

namespace witan::serve {
namespace {

using nlohmann::json;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

// A string or a list of strings.
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

// {"TOKEN": BIAS}, within the bounds of OpenAI's API.
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

// Members that do not affect the answer.
void ignore_information(RequestMembers& members) {
  for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
    members.ignore(name);
}

void parse_sampling(RequestMembers& members, SamplingRequest& request) {
  request.model = members.text("model").value_or("");
  request.max_tokens = members.integer("max_tokens", 0, kMost);
  request.temperature = members.number("temperature", 0, 100);
  request.top_p = members.number("top_p", 0, 1);
  if (request.top_p == 0.0) request.top_p = std::numeric_limits<double>::min();  // only the likeliest token
  request.min_p = members.number("min_p", 0, 1);
  request.repetition_penalty = members.number("repetition_penalty", 0.01, 100);
  request.presence_penalty = members.number("presence_penalty", -2, 2).value_or(0);
  request.frequency_penalty = members.number("frequency_penalty", -2, 2).value_or(0);
  request.logit_bias = parse_logit_bias(members);
  request.top_k = members.integer("top_k", -1, kMost);
  if (request.top_k == -1) request.top_k = 0;  // other servers' way to say "all tokens"
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

using jinja::Value;

[[noreturn]] void refuse_chat(const char* member, const std::string& message) {
  throw ApiError(400, message, member, "invalid_value");
}

// The member of an object; nullptr if it is absent or none.
const Value* member_of(const Value& object, const char* name) {
  const Value* found = object.entries() ? jinja::find(*object.entries(), name) : nullptr;
  return found && !found->is_none() ? found : nullptr;
}

const std::string* text_of(const Value& object, const char* name) {
  const Value* found = member_of(object, name);
  return found ? found->string() : nullptr;
}

// Chat templates accept calls in many forms, but clients must use OpenAI's.
void check_calls(const Value& calls, const std::string& where) {
  for (const Value& call : *calls.sequence()->items) {
    const Value* function = member_of(call, "function");
    if (!function || !text_of(*function, "name") || !member_of(*function, "arguments"))
      refuse_chat("messages", cat(where, ".tool_calls: a call has no function with a name and arguments"));
  }
}

Value parse_message(const Value& given, const std::string& where, ChatRequest& request) {
  const std::string* role = text_of(given, "role");
  if (!role) refuse_chat("messages", cat(where, " must be an object with a role and a content"));
  if (const Value* call = member_of(given, "function_call"); call && truth(*call))
    throw ApiError(400, cat(where, ".function_call is not supported: use tool_calls"), "messages", "unsupported_value");
  Value message;
  try {
    message = normal_message(given);
  } catch (const DataError& error) {
    refuse_chat("messages", cat(where, ".", error.what()));
  }
  const Value* calls = member_of(message, "tool_calls");
  const bool has_calls = calls && truth(*calls);
  if (has_calls) check_calls(*calls, where);
  request.speaks_of_tools |= has_calls || *role == "tool";
  if (!text_of(message, "content"))
    refuse_chat("messages", cat(where, ".content must be a string or a list of parts of type text"));
  return message;
}

void parse_messages(RequestMembers& members, ChatRequest& request) {
  const Value messages = members.for_template("messages");
  if (messages.is_undefined())
    throw ApiError(400, "the request has no messages", "messages", "missing_required_parameter");
  if (!messages.sequence() || messages.sequence()->items->empty())
    refuse_chat("messages", "messages must be a list of at least one message");
  const jinja::Items& all = *messages.sequence()->items;
  for (size_t i = 0; i < all.size(); ++i)
    request.messages.push_back({{}, {}, to_json(parse_message(all[i], cat("messages[", i, "]"), request))});
}

// tool_choice = "none" drops the tools.
void parse_tools(RequestMembers& members, ChatRequest& request) {
  const Value given = members.for_template("tools");
  members.neutral("tool_choice", {"none", "auto"}, "the model itself decides whether to call a tool");
  const json* choice = members.any("tool_choice");
  const auto parallel = members.boolean("parallel_tool_calls");
  if (given.is_undefined()) return;
  if (!given.sequence()) refuse_chat("tools", "tools must be a list");
  if (given.sequence()->items->empty() || (choice && *choice == "none")) return;
  const jinja::Items& tools = *given.sequence()->items;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string* type = text_of(tools[i], "type");
    const Value* function = member_of(tools[i], "function");
    if (!type || *type != "function" || !function || !text_of(*function, "name"))
      refuse_chat("tools", cat("tools[", i, "] must be {\"type\": \"function\", \"function\": {\"name\": …}}"));
    if (const Value* strict = member_of(*function, "strict"); strict && strict->as<bool>() && truth(*strict))
      throw ApiError(400, cat("tools[", i, "].function.strict is not supported: the model may depart from the schema"),
                     "tools", "unsupported_value");
    request.tool_names.insert(*text_of(*function, "name"));
  }
  if (parallel == false)
    throw ApiError(400, "parallel_tool_calls = false is not supported: the model may make several calls",
                   "parallel_tool_calls", "unsupported_value");
  request.tools = to_json(normal_tools(given));
  request.speaks_of_tools = true;
}

// Refuses variables of a template that requests must not set.
void parse_template_variables(RequestMembers& members, ChatRequest& request) {
  constexpr const char* kName = "chat_template_kwargs";
  const Value variables = members.for_template(kName);
  if (variables.is_undefined()) return;
  if (!variables.entries()) refuse_chat(kName, cat(kName, " must be an object"));
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})
    if (jinja::find(*variables.entries(), name)) refuse_chat(kName, cat(kName, " must not set ", name));
  request.template_variables = to_json(variables);
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
  request.add_special_tokens = members.boolean("add_special_tokens").value_or(true);
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
  request.add_special_tokens = members.boolean("add_special_tokens").value_or(false);
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
