// The part of a tokenizer that data preparation needs, so that it does not depend on one tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/text/added_tokens.h"

namespace witan {

class Tokenizer;

struct TextEncoder {
  // Appends the tokens of a whole text, with those that the tokenizer puts around texts except for its end of text,
  // which the caller puts there. Thread-safe.
  std::function<void(std::string_view text, std::vector<int32_t>& out)> encode;
  // Tokenizer::text_bytes().
  std::function<int64_t(int32_t token)> token_bytes;
  int64_t vocab_size = 0;
  std::optional<int32_t> end_of_text = {};
  std::string hash;  // changes whenever the tokens would change
  // The tokens of a text alone, with the special tokens that it spells, but for what is literal (Tokenizer::encode_to).
  std::function<void(std::string_view text, std::span<const TextSpan> literal, std::vector<int32_t>& out)> encode_chat =
      {};
  std::string vocabulary = {};  // what ids stand for (vocabulary_digest()); empty: not known
  std::string file = {};        // where the tokenizer lies; empty: beside the shards, or not known
};

// What the tokens of whole texts depend on besides Tokenizer::hash(): what the tokenizer puts around them, if anything.
std::string hash_of_whole_texts(const Tokenizer& tokenizer);

TextEncoder text_encoder(std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace witan
