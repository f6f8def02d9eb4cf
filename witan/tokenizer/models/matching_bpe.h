// Byte-pair encoding without merging: takes the longest token that is compatible with the previous one, from left to
// right (van Antwerpen and Neubeck, "So many tokens, so little time", 2024, https://github.blog/ai-and-ml/llms/).
//
// The merges inside a part of a text do not depend on its surroundings as long as no merge crosses the ends of the
// part. So a token always results from the same merges, and a sequence of tokens is the encoding of its text if and
// only if every two adjacent tokens are the encoding of theirs: the first merge across the end of a token would also
// happen if only its neighbour were there. Each prefix of a text has only one such sequence, so that a position from
// which no token leads on is never tried again, and the time is linear.
//
// This requires that each merge has a higher rank than the merges of its parts. Published vocabularies have a few
// merges that do not ("early" merges). Tokens that only early merges produce are left out here, and words in which an
// early merge might happen are left to merging.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/interleaved.h"
#include "witan/tokenizer/models/merge_table.h"
#include "witan/tokenizer/models/pair_ranks.h"
#include "witan/tokenizer/models/token_trie.h"
#include "witan/tokenizer/models/tokenizer_spec.h"
#include "witan/tokenizer/models/word_batch.h"

namespace witan {

// Immutable: its methods may be called from several threads.
class MatchingBpe {
 public:
  // `merges` are the merges of `spec` and must outlive this; `bytes` are the tokens of the 256 bytes. Returns nullopt
  // if a byte has no token, if a merge does not concatenate the texts of its parts, or if there are more than a million
  // tokens or too many for a TokenTrie.
  static std::optional<MatchingBpe> make(const TokenizerSpec& spec, const MergeTable& merges,
                                         std::span<const int32_t, 256> bytes);

  // Whether the text of the token is certain to be encoded as this token.
  bool is_encoding_of_its_text(int32_t id) const { return token(id).length > 0 && token(id).in_order != 0; }

  // Encodes these words, several of them interleaved: while one waits for memory, another proceeds. Skips words that
  // are already encoded and leaves those unencoded that require merging.
  void encode(std::span<NewWord> words) const;

 private:
  // How a token results from merges; length 0: not by merges in the order of their ranks. Four fill a cache line.
  static constexpr int32_t kNoToken = (1 << 20) - 1;
  struct Token {
    int32_t left() const { return static_cast<int32_t>(left_id); }
    int32_t right() const { return static_cast<int32_t>(right_id); }
    int32_t shorter() const { return shorter_id == kNoToken ? -1 : static_cast<int32_t>(shorter_id); }

    uint64_t left_id : 20 = kNoToken, right_id : 20 = kNoToken;  // kNoToken for a byte
    uint64_t shorter_id : 20 = kNoToken;                         // the longest other token that is a prefix of its text
    uint64_t in_order : 1 = 1;                                   // no early merge can happen in its text
    uint32_t time = 0;                                           // one more than the rank of its merge; 0 for a byte
    uint32_t length = 0;                                         // bytes
  };
  static_assert(sizeof(Token) == 16);
  enum class Neighbours { stay, merge, unknown };  // unknown: an early merge might happen
  static constexpr size_t kAtOnce = 16;            // interleaved words

  explicit MatchingBpe(const MergeTable& merges) : merges_(&merges) {}
  bool derive(const TokenizerSpec& spec);
  bool index_pairs(const TokenizerSpec& spec);
  void mark_early_merges(const TokenizerSpec& spec);
  bool index_tokens(const TokenizerSpec& spec);
  const Token& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  bool comes_early(const Merge& merge, uint32_t rank) const;
  Neighbours check_neighbours(int32_t left, int32_t right) const;
  Interleaved encode_interleaved(std::span<NewWord> words, size_t& next) const;

  const MergeTable* merges_;
  std::vector<Token> tokens_;
  TokenTrie trie_;
  PairRanks pairs_;  // twice the rank, plus 1 for an early merge
};

}  // namespace witan
