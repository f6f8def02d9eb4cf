// The tokens that a tokenizer puts around every text: the post_processor of a tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>

#include "witan/tokenizer/files/json_node.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Reads it into a spec that has its vocabulary. Throws CorruptionError for a token that the vocabulary lacks, DataError
// for a post-processor that may put other tokens around a text than Hugging Face tokenizers does.
void read_post_processor(const JsonNode& node, TokenizerSpec& spec);

// Makes texts begin and end with these tokens of the vocabulary, if any.
void put_around_texts(std::optional<int32_t> first, std::optional<int32_t> last, TokenizerSpec& spec);

}  // namespace witan
