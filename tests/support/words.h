// A tokenizer for tests: a token for each byte, which texts are encoded with, and tokens for the words given.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "witan/tokenizer/tokenizer.h"

namespace witan::test {

// Bytes have their own ids; words follow, as many as are new and longer. With an end of text, it is the last token.
inline Tokenizer tokenizer_of(const std::vector<std::string>& words, bool end_of_text = false) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  for (const std::string& word : words)
    if (std::ranges::find(spec.tokens, word) == spec.tokens.end()) spec.tokens.push_back(word);
  if (end_of_text) {
    AddedToken end;
    end.id = static_cast<int32_t>(spec.tokens.size());
    end.text = "<|endoftext|>";
    spec.tokens.push_back(end.text);
    spec.added.push_back(end);
  }
  return Tokenizer(std::move(spec));
}

}  // namespace witan::test
