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

}  // namespace witan
