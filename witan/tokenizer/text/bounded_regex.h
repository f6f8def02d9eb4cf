// Regular expressions on Oniguruma, with Witan's own Unicode tables (with_own_unicode()), and bounded in time and
// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace witan {

// Immutable: several threads may search with it.
class BoundedRegex {
 public:
  // `name`: what messages call it. Throws DataError for an expression that does not compile or may differ in meaning
  // between versions of Oniguruma.
  BoundedRegex(std::string regex, std::string name);
  ~BoundedRegex();
  BoundedRegex(BoundedRegex&&) noexcept;

  struct Match {
    size_t begin, end;                               // bytes of the text
    std::optional<std::pair<size_t, size_t>> group;  // of the first group, if the expression has one and it took part
  };

  // The searches of one text, which share limits of time and memory. A byte that is not part of valid UTF-8 counts as a
  // control character. The expression and the text must outlive it.
  class Search {
   public:
    Search(const BoundedRegex& regex, std::string_view text);
    ~Search();

    // The first match that begins at byte `from` or later. Throws DataError if it exceeds the limits.
    std::optional<Match> find(size_t from);
    // The length of the character that begins at this byte.
    size_t length_of_character(size_t at) const;

   private:
    struct State;
    const BoundedRegex& regex_;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::string regex_, name_;
  std::unique_ptr<Code> code_;
};

}  // namespace witan
