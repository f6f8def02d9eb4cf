// The definition of a tokenizer as plain data: the contents of its file, or the result of training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/tokenizer/text/added_tokens.h"
#include "witan/tokenizer/text/decoder.h"
#include "witan/tokenizer/text/normalizer.h"
#include "witan/tokenizer/text/pretokenizer.h"

namespace witan {

// Within a pre-token, adjacent tokens `left` and `right` merge to `result`.
struct Merge {
  int32_t left, right, result;
  bool operator==(const Merge&) const = default;
};

struct TokenizerSpec {
  enum class Model { bpe, unigram, word_piece, word_level };

  Model model = Model::bpe;
  std::vector<std::string> tokens;     // by id: bytes, including added tokens; empty for unused ids. In a
                                       // character-level vocabulary: the text in the file, such as ▁the or <0x0A>
  std::optional<int32_t> empty_token;  // the id of a token whose text is empty
  std::vector<Merge> merges;           // in the order of ranks: the first is applied first
  std::vector<uint32_t>
      merge_ranks;                  // of each merge; empty: its position. Of equal ranks the leftmost is applied first
  std::string word_prefix;          // word_piece: prefix of tokens within a word
  int64_t longest_word = 0;         // word_piece: in characters; longer words are unknown
  std::vector<double> scores;       // unigram: log probability of each token
  std::vector<AddedToken> added;    // sorted by id
  std::vector<SplitStep> patterns;  // of the pre-tokenizer, applied in order
  std::vector<NormalizerStep> normalizers;
  bool prefix_space = false;           // prepends a space to text that does not start with one
  bool ignore_merges = false;          // a pre-token that is itself a token is not merged
  bool byte_level = true;              // words are merged from their bytes; else from their characters
  bool byte_fallback = false;          // a character without a token becomes the tokens of its bytes, <0x00> ... <0xFF>
  std::optional<int32_t> unk;          // the token for a character without one; nullopt: it is dropped
  bool fuse_unk = false;               // adjacent unknown tokens become one
  std::vector<DecoderStep> decoding;   // for a character-level vocabulary
  std::string sentencepiece;           // the bytes of a SentencePiece model, which then defines the encoding
  std::vector<int32_t> before, after;  // tokens that the post-processor puts around every text
  // JSON that does not affect encode(), kept for other readers of a tokenizer.json.
  std::string post_processor = "null", truncation = "null", padding = "null", unk_token = "null";
  std::string decoder = "null";  // for a character-level vocabulary
};

// Compares the vocabularies of two tokenizers. Trained weights know tokens by their ids only, so that ids must mean the
// same tokens.

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
