// Rank files as tiktoken reads them: a line for every token, its bytes in base64, a space, its id, which is also the
// rank of the merges that give it. Source: load_tiktoken_bpe() of
// https://github.com/openai/tiktoken/blob/main/tiktoken/load.py
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// The split pattern with a name: gpt2, cl100k, llama3 (the same), qwen2, o200k, tekken, kimi. Throws DataError for
// others.
std::string split_pattern_named(std::string_view name);

bool looks_like_ranks(std::string_view text);

// The file holds neither the pattern nor special tokens. Those of published files are known by the number of their
// ranks: r50k, p50k, cl100k and o200k (OpenAI), Llama 3 and 4, Qwen. For others `pattern` names the pattern, and there
// are no special tokens. Throws CorruptionError for a damaged file, DataError where the pattern is unknown.
TokenizerSpec parse_tiktoken(std::string_view text, std::string_view source, std::string_view pattern);

// Gives `spec` the merges of its tokens `ids`, whose ids are their ranks, and tiktoken's rule that a word which is a
// token is not merged. Throws CorruptionError for a token that appears twice.
void complete_ranks(TokenizerSpec& spec, const std::vector<int32_t>& ids, std::string_view source);

}  // namespace witan
