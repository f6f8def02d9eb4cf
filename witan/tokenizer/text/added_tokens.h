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

// A token that is matched in a text before the text is split into pre-tokens. Flags are named as in a tokenizer.json.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = true;       // matched only on request (allow_special)
  bool normalized = false;   // matched in the normalised text instead of the original one
  bool in_model = true;      // the model's vocabulary lists it too
  bool single_word = false;  // not matched next to a letter, digit or underscore
  bool lstrip = false;       // strips white space before the match
  bool rstrip = false;       // strips white space after it
};

// The bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

// Immutable once filled: find() may be called from several threads.
class AddedTokenMatcher {
 public:
  // [begin, end) includes the white space that the token strips; `next` is the end of its text.
  struct Match {
    size_t begin, end, next;
    int32_t id;
  };

  // `text` is the token's text, normalised if the searched text is. An empty text never matches.
  void add(std::string text, const AddedToken& token);

  // Returns the leftmost match at or after `from`; at one position the longest. Special tokens match only if
  // `allow_special`, and only if none of their bytes lies in `literal` (sorted, disjoint spans). White space before
  // `done` is not stripped. White space stripped after a token may itself be, or start, the next match, so the next
  // search continues at `next`.
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
  std::array<std::bitset<256>, 256>
      second_bytes_;         // by first byte: the second bytes of its tokens; all, if the byte itself is a token
  std::string first_bytes_;  // that some token starts with
  bool any_special_ = false, any_ordinary_ = false;
};

}  // namespace witan
