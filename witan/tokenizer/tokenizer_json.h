// Hugging Face's tokenizer.json, read and written. What is supported: docs/formats/tokenizer_json.md.
#pragma once

#include <string>
#include <string_view>

#include "witan/tokenizer/tokenizer_spec.h"

namespace witan {

// Reads the text of a tokenizer.json; `source` names it in messages. Throws CorruptionError for text that is not such a
// file or contradicts itself, DataError for a kind of tokenizer that Witan does not support, naming it.
TokenizerSpec parse_tokenizer_json(std::string_view text, std::string_view source);

// The text of a tokenizer.json that encodes as `spec` says; parsing it gives an equal spec.
std::string write_tokenizer_json(const TokenizerSpec& spec);

}  // namespace witan
