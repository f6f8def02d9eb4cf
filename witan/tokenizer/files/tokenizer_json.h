// Reads and writes Hugging Face's tokenizer.json. docs/formats/tokenizer_json.md lists what is supported.
#pragma once

#include <string>
#include <string_view>

#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Parses the text of a tokenizer.json; `source` names it in messages. Throws CorruptionError for text that is not such
// a file or contradicts itself, DataError naming the construct for a tokenizer that Witan does not support.
TokenizerSpec parse_tokenizer_json(std::string_view text, std::string_view source);

// The text of a tokenizer.json with the behaviour of `spec`; parsing it gives an equal spec.
std::string write_tokenizer_json(const TokenizerSpec& spec);

}  // namespace witan
