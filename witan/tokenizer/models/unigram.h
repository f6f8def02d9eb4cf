// The unigram language model (Kudo 2018, https://arxiv.org/abs/1804.10959): segments a text into the tokens with the
// greatest sum of log probabilities, by Viterbi's algorithm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/byte_trie.h"
#include "witan/tokenizer/models/token_map.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// The precision of sums decides between segmentations of nearly equal scores. Hugging Face sums in float64.
// SentencePiece sums in float32 and, since release 0.2.3, restarts at 0 when a sum exceeds 100,000, so that long texts
// stay exact.
enum class ScoreType { f64, f32 };

// Immutable: segment() may be called from several threads.
class Unigram {
 public:
  struct Piece {
    int32_t id;  // -1: a character without a token
    std::string_view text;
  };

  // tokens[id] has the score scores[id] and is found only if usable[id]. An unknown character has `unknown_score`.
  Unigram(const std::vector<std::string>& tokens, const std::vector<double>& scores, const std::vector<bool>& usable,
          double unknown_score, ScoreType type);

  // Appends the best segmentation of `text`. Takes O(n · longest token) time.
  void segment(std::string_view text, std::vector<Piece>& out) const;

 private:
  template <class Score>
  void segment_as(std::string_view text, std::vector<Piece>& out) const;

  ByteTrie trie_;
  std::vector<double> scores_;
  double unknown_score_;
  ScoreType type_;
};

// The Unigram model of a tokenizer.json: encodes words as Hugging Face tokenizers does. Immutable: encode() may be
// called from several threads.
class UnigramModel {
 public:
  // `spec` must outlive this.
  explicit UnigramModel(const TokenizerSpec& spec);

  // Appends the tokens of one word. Throws DataError for a character without a token if there is no unknown token.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  void put_unknown(std::string_view text, std::vector<int32_t>& out) const;

  const TokenizerSpec* spec_;
  Unigram unigram_;
  TokenMap known_;
  std::vector<int32_t> byte_ids_;  // of the 256 bytes, -1 for those without a token; empty without byte_fallback
};

}  // namespace witan
