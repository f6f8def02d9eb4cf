// Mistral's tekken.json: tokens in base64 by rank, behind the ids of special tokens, and the split pattern.
// Source: https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/tokens/tokenizers/tekken.py
#pragma once

#include <string_view>

#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

bool looks_like_tekken(std::string_view text);

// Throws CorruptionError for text that is no such file or contradicts itself.
TokenizerSpec parse_tekken(std::string_view text, std::string_view source);

}  // namespace witan
