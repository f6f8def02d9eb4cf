// Compares the vocabularies of two tokenizers. Trained weights know tokens by their ids only, so that ids must mean the
// same tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Compares the ids that both use. One may use more, such as an extended vocabulary.
struct VocabularyMatch {
  int64_t common = 0;            // ids that both use
  int64_t different = 0;         // of those, ordinary tokens that differ
  int64_t renamed = 0;           // of those, added tokens that differ, such as reserved tokens that were given a name
  std::optional<int32_t> first;  // the first ordinary token that differs, else the first added token that does
  bool same() const { return different == 0 && renamed == 0; }
};

VocabularyMatch match_vocabularies(const TokenizerSpec& a, const TokenizerSpec& b);

// A digest of a vocabulary, for comparisons when its file may be gone: eight hex digits of a hash for each block of 64
// ids, of which the last may be shorter.
std::string vocabulary_digest(const TokenizerSpec& spec);

// Compares the blocks of 64 ids that a digest and a vocabulary both cover.
struct DigestMatch {
  int64_t common = 0;     // blocks
  int64_t different = 0;  // of those, blocks in which some id means another token
  // Whether the vocabularies belong to different tokenizers. A few blocks may differ in reserved tokens that were given
  // a name.
  bool other() const { return different > 0 && different * 8 >= common; }
};

// `ids` is the number of ids that the digest covers.
DigestMatch match_digest(const std::string& digest, int64_t ids, const TokenizerSpec& spec);

}  // namespace witan
