// Requests for generation, and their results.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "witan/generate/sampler.h"

namespace witan {

struct GenerateOptions {
  int64_t max_tokens = 128;
  int64_t vocab_size = 0;              // the tokenizer's size: larger ids are never sampled; 0: the model's
  std::optional<int32_t> end_of_text;  // ends the text, without being part of it
  std::vector<int32_t> stop_tokens;    // these do too
  SamplerOptions sampler;
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  GenerateOptions options;
  int64_t top_logprobs = -1;     // -1: no logprobs; 0: of the chosen token; n: also of the n likeliest
  bool prompt_logprobs = false;  // also of the prompt's tokens, from the second one on
};

// The natural logarithm of the softmax of the model's logits over the vocabulary, whatever the sampler's temperature:
// the negative of what training calls the token's loss.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct GeneratedToken {
  int32_t token = 0;
  std::optional<float> logprob;   // if logprobs are requested
  std::vector<TokenLogprob> top;  // likeliest first
};

enum class Finish : uint8_t {
  stop,              // an end-of-text or stop token
  length,            // max_tokens
  stopped_by_caller  // on_token returned false
};

struct Generation {
  std::vector<GeneratedToken> prompt;  // the first has no logprob; empty unless requested
  std::vector<GeneratedToken> tokens;
  Finish finish = Finish::length;
  int64_t cached_prompt_tokens = 0;  // tokens that an earlier text had, and that were not computed again
  // With GenerationMode::routes: [tokens, routers, K], the experts of each token of prompt and text but the last one,
  // which is not read.
  std::vector<int32_t> routes;
};

}  // namespace witan
