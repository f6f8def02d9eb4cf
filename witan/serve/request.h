// What clients ask for: the JSON bodies of POST /v1/completions and POST /v1/chat/completions, as OpenAI's API has them
// (platform.openai.com/docs/api-reference), with top_k, repetition_penalty, chat_template_kwargs and add_special_tokens
// beside, as vLLM has them.
//
// A member that would change the result and is not supported is refused by name, one that is unknown too: an answer
// that silently ignores what was asked for would be wrong. Members that only inform (user, metadata, …) are ignored.
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

// Most of each that one request may ask for.
inline constexpr int64_t kMostChoices = 128;     // n
inline constexpr int64_t kMostPrompts = 1024;    // of one request
inline constexpr int64_t kMostStops = 16;        // stop strings
inline constexpr int64_t kMostTopLogprobs = 20;  // per position
inline constexpr int64_t kMostBiases = 1024;     // tokens of logit_bias

// What both endpoints have. Absent members are for the server to decide.
struct SamplingRequest {
  std::string model;  // empty: whichever there is
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  double presence_penalty = 0, frequency_penalty = 0;
  std::map<int32_t, double> logit_bias;  // by token
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  int64_t n = 1;              // choices of a prompt that are given
  int64_t best_of = 1;        // that are sampled, of which those with the largest log probability per token are given
  int64_t top_logprobs = -1;  // -1: none are wanted; else the most likely tokens per position, beside the token's own
  bool stream = false;
  bool add_special_tokens = false;  // what the tokenizer puts before texts goes before the prompt
  bool include_usage = false;       // a last chunk of the stream with the numbers of tokens
};

struct CompletionRequest : SamplingRequest {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;            // the prompt is part of the text, and its tokens have log probabilities
};

// JSON is as a chat template is given it (ChatTemplateOptions), with keys in the order of the request.
struct ChatRequest : SamplingRequest {
  std::vector<ChatMessage> messages;  // at least one, as normal_message() makes them, each with a text as its content
  std::string tools;                  // a list of functions that the model may call; empty: none
  std::set<std::string> tool_names;
  std::string template_variables;  // an object; empty: none
  bool speaks_of_tools = false;    // has tools, or messages that call them or answer their calls
};

// Throw ApiError (400) that names the member and what it must be.
CompletionRequest parse_completion_request(std::string_view body);
ChatRequest parse_chat_request(std::string_view body);

}  // namespace witan::serve
