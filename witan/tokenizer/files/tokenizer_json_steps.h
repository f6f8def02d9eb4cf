// Reads the parts of a tokenizer.json around its model. docs/formats/tokenizer_json.md lists what is supported.
#pragma once

#include <string>

#include "witan/tokenizer/files/json_node.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// The bytes that a text in base64 stands for.
std::string bytes_in(const JsonNode& node);

void read_normalizer(const JsonNode& node, TokenizerSpec& spec);

// A vocabulary of bytes is one whose text passes ByteLevel last; `bytes_expected`: the decoder demands one.
void read_pretokenizer(const JsonNode& node, bool bytes_expected, TokenizerSpec& spec);

// Whether the decoder is the one of vocabularies of bytes.
bool decodes_bytes(const JsonNode& node);
void read_decoder(const JsonNode& node, TokenizerSpec& spec);

}  // namespace witan
