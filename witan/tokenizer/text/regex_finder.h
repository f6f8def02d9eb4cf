// Finds what a regular expression describes in texts that a model has written.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "witan/tokenizer/text/bounded_regex.h"

namespace witan {

// Immutable: several threads may use it. Members throw DataError if a text exceeds the limits of time and memory.
class RegexFinder {
 public:
  // `name`: what messages call the expression. Throws DataError if it does not compile.
  RegexFinder(const std::string& regex, const std::string& name);

  // The first group of the last match, or the whole match if the expression has no group or it took no part.
  std::optional<std::string_view> last(std::string_view text) const;
  // Whether the whole text matches.
  bool matches(std::string_view text) const;

 private:
  BoundedRegex any_, whole_;
};

}  // namespace witan
