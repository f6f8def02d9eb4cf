// Byte-pair encoding of pre-tokens, called words here (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909): on
// bytes, as in GPT-2, or on characters, as in SentencePiece.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/matching_bpe.h"
#include "witan/tokenizer/models/merge_table.h"
#include "witan/tokenizer/models/token_map.h"
#include "witan/tokenizer/models/tokenizer_spec.h"
#include "witan/tokenizer/models/word_batch.h"
#include "witan/tokenizer/models/word_cache.h"
#include "witan/tokenizer/text/scanners.h"

namespace witan {

// Applies the merges of a tokenizer. Immutable: its methods may be called from several threads.
class Bpe {
 public:
  // `spec` must outlive this. Throws DataError if a byte-level vocabulary has no token for a byte, unless no assigned
  // character has that byte in UTF-8 (planes 4 to 11 are unassigned): some published vocabularies lack those bytes,
  // which encoding then drops.
  explicit Bpe(const TokenizerSpec& spec);
  explicit Bpe(TokenizerSpec&& spec) = delete;

  // Appends the tokens of one word: its bytes or characters, merged by lowest rank, leftmost first, until no merge
  // applies. Takes O(n log n) time for n bytes. Throws DataError for a word of 2 GiB or more.
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;
  // Encodes several words.
  void encode_words(const Pieces& words, std::vector<int32_t>& out) const;

  // Merges symbols, which are token ids; -1 never merges.
  void merge(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const;

  // For a character-level vocabulary: whether no merge crosses the start of a run of ▁, so that each run starts a part
  // of the text that can be merged on its own.
  bool runs_of_metaspace_begin_words() const { return runs_begin_words_; }

 private:
  template <class First>
  void merge_any(size_t n, First first, std::vector<int32_t>& out) const;
  template <class First>
  void merge_short(size_t n, First first, std::vector<int32_t>& out) const;
  template <class First>
  void merge_long(size_t n, First first, std::vector<int32_t>& out) const;
  void index_bytes(const std::vector<bool>& usable);
  void index_characters(const std::vector<bool>& usable);
  void index_words(const std::vector<bool>& usable);
  void merge_bytes(std::string_view word, std::vector<int32_t>& out) const;
  void encode_new(std::span<NewWord> words) const;
  void merge_new(std::string_view word, std::vector<int32_t>& out) const;
  void encode_characters(std::string_view word, std::vector<int32_t>& out) const;
  void encode_part(std::string_view part, std::vector<int32_t>& out) const;

  // For byte-level words; created on first use.
  struct Matching {
    std::once_flag once;
    std::optional<MatchingBpe> bpe;
  };
  const MatchingBpe* matching() const;  // nullptr if words must be merged

  const TokenizerSpec* spec_;
  MergeTable merges_;
  int32_t byte_token_[256];  // in a character-level vocabulary: the byte_fallback tokens, or -1
  ShortTokens short_;        // words that are a single token
  TokenMap whole_;           // the other words that are a single token
  TokenMap characters_;      // in a character-level vocabulary: characters with a token
  std::unique_ptr<Matching> matching_ = std::make_unique<Matching>();
  uint32_t owner_ = WordCache::new_owner();
  bool runs_begin_words_ = false, cuts_ = false, lacks_bytes_ = false;
};

}  // namespace witan
