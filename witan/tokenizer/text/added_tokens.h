// Finds added tokens in running text, as Hugging Face tokenizers does.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// A token that is matched in the text before it is split into pre-tokens.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = true;       // recognised in a text only on request
  bool normalized = false;   // matched after normalisation instead of before
  bool in_model = true;      // the model's vocabulary lists it too
  bool single_word = false;  // matched only where no letter, digit or underscore touches it
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // and behind it
};

// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

// Immutable after it is filled: find() may be called from several threads.
class AddedTokenMatcher {
 public:
  // [begin, end) with the white space that the token swallows; `next`: the end of its text.
  struct Match {
    size_t begin, end, next;
    int32_t id;
  };

  // `text` is what is looked for: the token's own, or normalised. An empty one is never found.
  void add(std::string text, const AddedToken& token);

  // The leftmost match at or after `from`; of several at one position, the longest. Special tokens only match on
  // request, and not where a byte of theirs lies in `literal`, whose spans are in order and apart from each other. No
  // white space before `done` is swallowed. White space that was swallowed behind a token may itself be, or begin, the
  // next match: the next search goes on from `next`.
  std::optional<Match> find(std::string_view text, size_t from, size_t done, bool allow_special,
                            std::span<const TextSpan> literal = {}) const;
  bool has_special() const { return any_special_; }

 private:
  struct Token {
    std::string text;
    int32_t id;
    bool special, single_word, lstrip, rstrip;
  };
  std::array<std::vector<Token>, 256> by_first_byte_;  // longest first
  std::array<std::bitset<256>, 256> second_bytes_;     // those of the tokens with a first byte; all, if it is a token
  std::string first_bytes_;                            // those with tokens
  bool any_special_ = false, any_ordinary_ = false;
};

}  // namespace witan
