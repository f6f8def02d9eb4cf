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

// Inside a pre-token, `left` next to `right` becomes `result`.
struct Merge {
  int32_t left, right, result;
  bool operator==(const Merge&) const = default;
};

struct TokenizerSpec {
  enum class Model { bpe, unigram, word_piece, word_level };

  Model model = Model::bpe;
  std::vector<std::string> tokens;     // id -> bytes, added tokens included; empty where the id is not used. Of a
                                       // vocabulary of characters: the text in the file, such as ▁the or <0x0A>
  std::optional<int32_t> empty_token;  // the id of a token without text, which stands for nothing
  std::vector<Merge> merges;           // by rank: the first is applied first
  std::vector<uint32_t> merge_ranks;   // of each merge; empty: its place. Of equal ranks the leftmost goes first
  std::string word_prefix;             // word_piece: of tokens within a word
  int64_t longest_word = 0;            // word_piece: in characters; longer ones are unknown
  std::vector<double> scores;          // unigram: log probability of each token
  std::vector<AddedToken> added;       // by id
  std::vector<SplitStep> patterns;     // of the pre-tokenizer, applied one after the other
  std::vector<NormalizerStep> normalizers;
  bool prefix_space = false;   // a space is put before text that does not start with one
  bool ignore_merges = false;  // a pre-token that is a token is not merged, whatever the merges say
  // Words are merged from their bytes; else from their characters.
  bool byte_level = true;
  bool byte_fallback = false;          // a character without a token becomes the tokens of its bytes, <0x00> … <0xFF>
  std::optional<int32_t> unk;          // what stands for a character without a token; none: it is dropped
  bool fuse_unk = false;               // neighbours become one
  std::vector<DecoderStep> decoding;   // of a vocabulary of characters
  std::string sentencepiece;           // the bytes of a SentencePiece model, which then says how to encode
  std::vector<int32_t> before, after;  // what the post-processor puts around every text
  // JSON that does not affect encode(), preserved for other readers.
  std::string post_processor = "null", truncation = "null", padding = "null", unk_token = "null";
  std::string decoder = "null";  // of a vocabulary of characters
};

}  // namespace witan
