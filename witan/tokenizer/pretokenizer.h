// Splits text into pre-tokens, within which byte-pair merges happen.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "witan/tokenizer/regex_splitter.h"
#include "witan/tokenizer/scanners.h"

namespace witan {

// A chain of split patterns: each splits the pieces left by the previous one, and sees nothing outside the piece. Known
// patterns run as linear scanners, others with Oniguruma. Without patterns the whole text is one pre-token. Immutable:
// split() may be called from several threads.
class Pretokenizer {
 public:
  // Throws DataError for a pattern that does not compile.
  explicit Pretokenizer(const std::vector<std::string>& patterns);

  // Passes the pre-tokens of `text` to `sink`, in order; together they are the text. Throws DataError if an unknown
  // pattern exceeds its bounds (see RegexSplitter).
  void split(std::string_view text, const PieceSink& sink) const;

 private:
  using Splitter = std::variant<Scanner, RegexSplitter>;
  void split_from(size_t level, std::string_view text, const PieceSink& sink) const;

  std::vector<Splitter> splitters_;
};

}  // namespace witan
