// What is asked of a generation, and what it gives.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "witan/generate/sampler.h"

namespace witan {

struct GenerateOptions {
  int64_t max_tokens = 128;
  int64_t vocab_size = 0;              // the tokenizer's: larger ids of the model are never sampled; 0: the model's
  std::optional<int32_t> end_of_text;  // stops the text, and is not part of it
  std::vector<int32_t> stop_tokens;    // so do these
  SamplerOptions sampler;
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  GenerateOptions options;
  int64_t top_logprobs = -1;     // -1: no logprobs; 0: the token's own; n: those of the n likeliest as well
  bool prompt_logprobs = false;  // of the prompt's tokens too, from the second on
};

// The natural logarithm of a probability: of the softmax of the model's logits at temperature 1 over the words of its
// vocabulary. It is what training calls the token's loss, with the other sign.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct GeneratedToken {
  int32_t token = 0;
  std::optional<float> logprob;   // where logprobs are asked for
  std::vector<TokenLogprob> top;  // the likeliest first
};

enum class Finish : uint8_t {
  stop,              // an end of text, or a stop token
  length,            // max_tokens
  stopped_by_caller  // who was told of the token
};

struct Generation {
  std::vector<GeneratedToken> prompt;  // the first has no logprob; empty unless it was asked for
  std::vector<GeneratedToken> tokens;
  Finish finish = Finish::length;
  int64_t cached_prompt_tokens = 0;  // that a text before had, and were not computed again
};

}  // namespace witan
