// What preparing data needs of a tokenizer, so that it can be another one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

class Tokenizer;

struct TextEncoder {
  // Appends the tokens of a text. Thread-safe.
  std::function<void(std::string_view text, std::vector<int32_t>& out)> encode;
  // Bytes of text that a token stands for: 0 for the end of text.
  std::function<int64_t(int32_t token)> token_bytes;
  int64_t vocab_size = 0;
  std::optional<int32_t> end_of_text = {};
  std::string hash;  // changes whenever the tokens would
};

TextEncoder text_encoder(std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace witan
