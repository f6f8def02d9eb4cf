// Samples that a run generates while it trains (sample_interval).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {

// The prompts of sample_interval: those of the file sample_prompts, else sample_prompt; none if sample_interval is 0.
// Throws what read_prompt_file() throws.
std::vector<std::string> interval_prompts(const TrainConfig& train);

// The texts that samples continue. With sft a prompt is a user's message, rendered by the run's chat template up to the
// answer; it stays as it is if the template does not accept a single message.
struct SamplePrompts {
  std::string last;                   // of the sample at the end
  std::vector<std::string> interval;  // of sample_interval
  std::vector<int32_t> ends = {};     // tokens that end an answer, besides the end of text
  bool chat = false;                  // whether special tokens are recognised
};

// By the run's own copy of the template or, before it has one, the template that it will find. Throws what
// interval_prompts() and find_conversation_format() throw.
SamplePrompts sample_prompts(const RunConfig& config, const Tokenizer& tokenizer);
// The prompts before there is a tokenizer, without `ends`; the plain prompts if there is no template yet.
SamplePrompts sample_prompts(const RunConfig& config);

// The tokens of a prompt; with `chat`, special tokens are recognised, otherwise it is encoded as the beginning of a
// text.
std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt, bool chat);

// Encodes a prompt; an empty one becomes an end-of-text token, after which a text begins. Throws DataError if the
// tokenizer has no such token.
std::vector<int32_t> encode_sample_prompt(const Tokenizer& tokenizer, const std::string& prompt, bool chat = false);

// The seed of the samples after a step, with which `witan generate --run NAME@STEP --seed` gives the same text.
uint64_t sample_seed(const TrainConfig& train, int64_t step);

// Generates the continuation of each prompt of sample_interval, one after the other, so that they need no more memory
// than the longest alone. With expert parallelism all ranks call it with the same arguments. The continuation is empty
// if the prompt leaves no positions of the model.
std::vector<std::string> generate_samples(Stream& stream, Transformer& model, const Tokenizer& tokenizer,
                                          const TrainConfig& train, const SamplePrompts& prompts, uint64_t seed);

}  // namespace witan
