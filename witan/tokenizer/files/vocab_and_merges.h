// GPT-2's pair of files: vocab.json (token to id) and merges.txt (a merge a line).
// Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py
#pragma once

#include <string_view>

#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Byte-level BPE with the pattern named (split_pattern_named(), tiktoken.h); empty: GPT-2's. Keys that are
// special tokens of published files (<s>, <pad>, <|…|> …) are special here, too.
TokenizerSpec parse_vocab_and_merges(std::string_view vocab, std::string_view vocab_source, std::string_view merges,
                                     std::string_view merges_source, std::string_view pattern);

}  // namespace witan
