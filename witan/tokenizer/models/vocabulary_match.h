// Whether two tokenizers give the same numbers to the same text: weights that were trained with one of them know tokens
// by these numbers alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Of ids that both use. One may use more, as a vocabulary does that was extended.
struct VocabularyMatch {
  int64_t common = 0;            // ids that both use
  int64_t different = 0;         // of those: ordinary tokens that differ
  int64_t renamed = 0;           // of those: added tokens that differ, such as reserved ones that were given a name
  std::optional<int32_t> first;  // id of the first ordinary token that differs or, where none does, added one
  bool same() const { return different == 0 && renamed == 0; }
};

VocabularyMatch match_vocabularies(const TokenizerSpec& a, const TokenizerSpec& b);

// What is kept of a vocabulary whose file may be gone: eight hex digits of a hash for every 64 ids, of which the last
// may be fewer.
std::string vocabulary_digest(const TokenizerSpec& spec);

// Of stretches of 64 ids that a digest of so many ids and the vocabulary both cover.
struct DigestMatch {
  int64_t common = 0;     // stretches
  int64_t different = 0;  // of those: an id or more stands for another token
  // Whether the vocabularies are of different tokenizers. A few stretches may differ by reserved tokens that were given
  // a name.
  bool other() const { return different > 0 && different * 8 >= common; }
};

DigestMatch match_digest(const std::string& digest, int64_t ids, const TokenizerSpec& spec);

}  // namespace witan
