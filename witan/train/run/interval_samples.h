// Samples that a run generates while it trains (sample_interval).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/run/config.h"

namespace witan {

// The prompts of sample_interval: those of the file sample_prompts, else sample_prompt; none where there are no such
// samples. Throws what read_prompt_file() throws.
std::vector<std::string> interval_prompts(const TrainConfig& train);

// A prompt as tokens: an empty one is an end of text, behind which another begins. Throws DataError where the tokenizer
// has no such token.
std::vector<int32_t> encode_sample_prompt(const Tokenizer& tokenizer, const std::string& prompt);

// The seed of the samples behind a step: `witan generate --run NAME@STEP --seed` gives the same text.
uint64_t sample_seed(const TrainConfig& train, int64_t step);

// The continuation of each prompt, one after the other, so that their number takes no more memory than the longest.
// With expert parallelism a call of all ranks with the same arguments. "" of a prompt behind which the model has no
// positions left.
std::vector<std::string> generate_samples(Stream& stream, Transformer& model, const Tokenizer& tokenizer,
                                          const TrainConfig& train, const std::vector<std::string>& prompts,
                                          uint64_t seed);

}  // namespace witan
