// A tokenizer for tests: a token for each byte, used for encoding text, and tokens for the given words.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "witan/tokenizer/tokenizer.h"

namespace witan::test {

// Bytes are their own ids; the new words longer than a byte follow. An optional end-of-text token is the last one.
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
