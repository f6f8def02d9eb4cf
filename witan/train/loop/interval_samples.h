// Samples that a run generates while it trains (sample_interval).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {

// The prompts of sample_interval: those of the file sample_prompts, else sample_prompt; none where there are no such
// samples. Throws what read_prompt_file() throws.
std::vector<std::string> interval_prompts(const TrainConfig& train);

// What samples continue. With sft a prompt is what the user says, and what is continued is the conversation that begins
// with it, as the run's chat template writes it up to the answer; the prompt itself where the template does not take a
// question alone.
struct SamplePrompts {
  std::string last;                   // of the sample at the end
  std::vector<std::string> interval;  // of sample_interval
  std::vector<int32_t> ends = {};     // tokens that end an answer, beside the end of text
  bool chat = false;                  // special tokens are recognised
};

// Of the template that the run keeps or, before it does, the one it will find. Throws what interval_prompts() and
// find_conversation_format() throw.
SamplePrompts sample_prompts(const RunConfig& config, const Tokenizer& tokenizer);
// The same before there is a tokenizer, without `ends`; the prompts themselves where there is no template yet either.
SamplePrompts sample_prompts(const RunConfig& config);

// A prompt as tokens, of a conversation (`chat`) with its special tokens, otherwise as the tokenizer begins a text.
std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt, bool chat);

// The same, but an empty one is an end of text, behind which another begins. Throws DataError where the tokenizer
// has no such token.
std::vector<int32_t> encode_sample_prompt(const Tokenizer& tokenizer, const std::string& prompt, bool chat = false);

// The seed of the samples behind a step: `witan generate --run NAME@STEP --seed` gives the same text.
uint64_t sample_seed(const TrainConfig& train, int64_t step);

// The continuation of each prompt of sample_interval, one after the other, so that their number takes no more memory
// than the longest. With expert parallelism a call of all ranks with the same arguments. "" of a prompt behind which
// the model has no positions left.
std::vector<std::string> generate_samples(Stream& stream, Transformer& model, const Tokenizer& tokenizer,
                                          const TrainConfig& train, const SamplePrompts& prompts, uint64_t seed);

}  // namespace witan
