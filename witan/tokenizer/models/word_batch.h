// Encodes words together, so that memory latency of one lookup overlaps with other lookups.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/word_cache.h"
#include "witan/tokenizer/text/scanners.h"

namespace witan {

// A word that is not in the cache, with room for as many tokens as it has bytes.
struct NewWord {
  std::string_view text;
  int32_t* tokens;
  size_t count = 0;         // number of tokens
  bool is_encoded = false;  // the tokens are known
};

// Not thread-safe.
class WordBatch {
 public:
  static constexpr size_t kMost = 1024;

  // Uses the words of `owner` in `cache`.
  WordBatch(WordCache& cache, uint32_t owner) : cache_(&cache), owner_(owner) {}

  // Looks up the words, at most kMost, in the cache and among the tokens. Returns those found in neither, which must be
  // encoded before append_to().
  std::span<NewWord> look_up(const Pieces& words, const ShortTokens& tokens);

  // Appends the tokens of all words in order and adds the new words to the cache.
  void append_to(std::vector<int32_t>& out);

 private:
  using ShortKey = WordKey<2>;
  using LongKey = WordKey<4>;
  struct Word {
    ShortKey key;
    size_t place;        // in the cache
    const int32_t* ids;  // in the cache or in room_; at least three can be read
    size_t count;
  };
  // A word that is not among the cache's short words.
  struct Missing {
    size_t index;
    std::string_view text;
    LongKey key;
    size_t place;
    size_t new_word;  // its index in new_, or kNone
    int32_t id;       // if the word is a token, else -1
  };
  static constexpr size_t kNone = SIZE_MAX;

  void look_up_short(const Pieces& words, const ShortTokens& tokens);
  void look_up_missing(const ShortTokens& tokens);
  void make_room();
  void keep();

  WordCache* cache_;
  uint32_t owner_;
  size_t count_ = 0, missing_count_ = 0;
  std::array<Word, kMost> words_;
  std::array<Missing, kMost> missing_;
  std::vector<NewWord> new_;
  std::unique_ptr<int32_t[]> room_;  // for the tokens of new words
  size_t room_size_ = 0;
};

}  // namespace witan
