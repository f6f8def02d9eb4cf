// What clients ask for: the JSON bodies of POST /v1/completions and POST /v1/chat/completions, as OpenAI's API has them
// (platform.openai.com/docs/api-reference), with top_k and repetition_penalty beside.
//
// A member that would change the result and is not supported is refused by name, one that is unknown too: an answer
// that silently ignores what was asked for would be wrong. Members that only inform (user, metadata, …) are ignored.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace witan::serve {

// Most of each that one request may ask for.
inline constexpr int64_t kMostChoices = 128;     // n
inline constexpr int64_t kMostPrompts = 1024;    // of one request
inline constexpr int64_t kMostStops = 16;        // stop strings
inline constexpr int64_t kMostTopLogprobs = 20;  // per position

// What both endpoints have. Absent members are for the server to decide.
struct SamplingRequest {
  std::string model;  // empty: whichever there is
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  int64_t n = 1;
  int64_t top_logprobs = -1;  // -1: none are wanted; else the most likely tokens per position, beside the token's own
  bool stream = false;
  bool include_usage = false;  // a last chunk of the stream with the numbers of tokens
};

struct CompletionRequest : SamplingRequest {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;            // the prompt is part of the text, and its tokens have log probabilities
};

struct ChatRequest : SamplingRequest {
  // [{"role": …, "content": "…", …}, …]: at least one; content in parts of text is joined to one string.
  nlohmann::json messages;
};

// Throw ApiError (400) that names the member and what it must be.
CompletionRequest parse_completion_request(std::string_view body);
ChatRequest parse_chat_request(std::string_view body);

}  // namespace witan::serve
