// Generates text with a trained model: one token at a time, with a KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "witan/generate/sampler.h"
#include "witan/model/transformer.h"

namespace witan {

struct GenerateOptions {
  int64_t max_tokens = 128;
  int64_t vocab_size = 0;              // the tokenizer's: larger ids of the model are never sampled; 0: the model's
  std::optional<int32_t> end_of_text;  // stops the text, and is not part of it
  SamplerOptions sampler;
};

// Continues `prompt` (at least one token). `on_token` gets each new token as it is generated. With expert parallelism
// every rank calls this with the same arguments and gets the same tokens.
// Throws DataError for an empty prompt or ids outside the vocabulary, ConfigError if prompt and max_tokens exceed the
// number of positions that the model has learned.
std::vector<int32_t> generate(Stream& stream, Transformer& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token = {});

// How many of `wanted` tokens may follow a prompt, given the model's number of positions.
int64_t tokens_that_fit(const Transformer& model, int64_t prompt_tokens, int64_t wanted);

}  // namespace witan
