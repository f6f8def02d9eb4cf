// Finds added tokens in running text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// Immutable after it is filled: find() may be called from several threads.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin, length;
    int32_t id;
  };

  // `text` must not be empty.
  void add(std::string text, int32_t id, bool special);

  // The leftmost match at or after `from`; of several at one position, the longest. Special tokens only match on
  // request.
  std::optional<Match> find(std::string_view text, size_t from, bool allow_special) const;

 private:
  struct Token {
    std::string text;
    int32_t id;
    bool special;
  };
  std::array<std::vector<Token>, 256> by_first_byte_;  // longest first
  bool any_special_ = false, any_ordinary_ = false;
};

}  // namespace witan
