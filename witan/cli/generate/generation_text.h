// What `witan generate` prints of a generation: JSON for programs, a table for people.
#pragma once

#include <string>
#include <vector>

#include "witan/generate/request.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {

// One line: {"prompt", "text", "tokens", "logprobs", "top_logprobs", "finish_reason"}. The text is that behind the
// prompt; the tokens are all that were generated, those of a stop string among them. Log probabilities are there if
// they were asked for: of each token, and [[token, log probability], …] of the likeliest.
std::string generation_json(const std::string& prompt, const std::string& text, const Generation& generation,
                            bool stopped);

// A line for each token: its log probability, the token, and the likeliest in its place.
std::string logprob_table(const Tokenizer& tokenizer, const std::vector<GeneratedToken>& tokens);

}  // namespace witan::cli
