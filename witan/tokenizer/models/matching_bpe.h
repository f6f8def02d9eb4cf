// Byte-pair encoding without merging: the longest tokens that may stand beside each other, from left to right
// (van Antwerpen and Neubeck, "So many tokens, so little time", 2024, https://github.blog/ai-and-ml/llms/).
//
// Which merges happen inside of a part of a text does not depend on what is around it, as long as none reaches over the
// part's ends. So a token is always made by the same merges, and tokens are the encoding of their text exactly if each
// two neighbours are the encoding of theirs: the first merge over the end of a token would also happen if only its
// neighbour were there. And a beginning of a text has only one such sequence, so that a place from which no token leads
// on is never tried again: the time is linear.
//
// This needs merges of higher rank than those of their parts. Published vocabularies have a few others; the tokens that
// only these make are left out here, and a word in which one might be made is refused.
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
  // `merges` are those of `spec`, and must outlive it, `bytes` the tokens of the 256 bytes. nullopt where a byte has no
  // token, a merge does not join the texts of its parts, or there are more than a million tokens, or too many for a
  // TokenTrie.
  static std::optional<MatchingBpe> make(const TokenizerSpec& spec, const MergeTable& merges,
                                         std::span<const int32_t, 256> bytes);

  // Whether the text of the token is certainly encoded as this token.
  bool is_encoding_of_its_text(int32_t id) const { return token(id).length > 0 && token(id).in_order != 0; }

  // Encodes all of these words, some in turns: while one waits for the memory another one goes on. Leaves those alone
  // that are encoded, and those whose tokens must be found by merging.
  void encode(std::span<NewWord> words) const;

 private:
  // How a token is made; length 0: not by merges in the order of their ranks. Four of them fill a line of the cache.
  static constexpr int32_t kNoToken = (1 << 20) - 1;
  struct Token {
    int32_t left() const { return static_cast<int32_t>(left_id); }
    int32_t right() const { return static_cast<int32_t>(right_id); }
    int32_t shorter() const { return shorter_id == kNoToken ? -1 : static_cast<int32_t>(shorter_id); }

    uint64_t left_id : 20 = kNoToken, right_id : 20 = kNoToken;  // a byte has none
    uint64_t shorter_id : 20 = kNoToken;                         // the longest other token that its text begins with
    uint64_t in_order : 1 = 1;  // no merge of lower rank than those of its parts may happen in its text
    uint32_t time = 0;          // one more than the rank of the merge; a byte: 0
    uint32_t length = 0;        // bytes
  };
  static_assert(sizeof(Token) == 16);
  enum class Neighbours { stay, merge, unknown };  // unknown: if an early merge happens there
  static constexpr size_t kAtOnce = 16;            // words in turns

  explicit MatchingBpe(const MergeTable& merges) : merges_(&merges) {}
  bool derive(const TokenizerSpec& spec);
  bool index_pairs(const TokenizerSpec& spec);
  void mark_early_merges(const TokenizerSpec& spec);
  bool index_tokens(const TokenizerSpec& spec);
  const Token& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  bool comes_early(const Merge& merge, uint32_t rank) const;
  Neighbours parts(int32_t left, int32_t right) const;
  Turns encode_in_turns(std::span<NewWord> words, size_t& next) const;

  const MergeTable* merges_;
  std::vector<Token> tokens_;
  TokenTrie trie_;
  PairRanks pairs_;  // twice the rank, and 1 more for an early merge
};

}  // namespace witan
