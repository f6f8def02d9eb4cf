// Requests of clients: the JSON bodies of POST /v1/completions and POST /v1/chat/completions in OpenAI's API
// (platform.openai.com/docs/api-reference), extended by vLLM's top_k, repetition_penalty, chat_template_kwargs and
// add_special_tokens.
//
// Unknown members, and unsupported members that would change the result, are refused by name: an answer that silently
// ignores part of the request would be wrong. Purely informative members (user, metadata, ...) are ignored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "witan/tokenizer/chat/chat_template.h"

namespace witan::serve {

// Limits per request.
inline constexpr int64_t kMostChoices = 128;     // n
inline constexpr int64_t kMostPrompts = 1024;    // of one request
inline constexpr int64_t kMostStops = 16;        // stop strings
inline constexpr int64_t kMostTopLogprobs = 20;  // per position
inline constexpr int64_t kMostBiases = 1024;     // tokens of logit_bias

// The members that both endpoints share. The server decides the values of absent ones.
struct SamplingRequest {
  std::string model;  // empty: the model that is served
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  double presence_penalty = 0, frequency_penalty = 0;
  std::map<int32_t, double> logit_bias;  // by token
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  int64_t n = 1;        // choices returned per prompt
  int64_t best_of = 1;  // choices sampled, of which the n with the largest mean log probability are returned
  int64_t top_logprobs =
      -1;  // number of likeliest tokens per position besides the token itself; -1: no log probabilities
  bool stream = false;
  bool add_special_tokens = false;  // prepends the tokens that the tokenizer puts before texts
  bool include_usage = false;       // ends the stream with a chunk that has the token counts
};

struct CompletionRequest : SamplingRequest {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;            // the prompt is part of the text, and its tokens have log probabilities
};

// JSON members are passed to the chat template (ChatTemplateOptions), with keys in the order of the request.
struct ChatRequest : SamplingRequest {
  std::vector<ChatMessage> messages;  // at least one, as normal_message() makes them, each with a text as its content
  std::string tools;                  // a list of functions that the model may call; empty: none
  std::set<std::string> tool_names;
  std::string template_variables;  // an object; empty: none
  bool speaks_of_tools = false;    // has tools, or messages with tool calls or their results
};

// Throw ApiError (400) naming the member and what it must be.
CompletionRequest parse_completion_request(std::string_view body);
ChatRequest parse_chat_request(std::string_view body);

}  // namespace witan::serve
