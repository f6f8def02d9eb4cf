// Splits text with a regular expression that has no scanner of its own: PCRE2 with its just-in-time compiler, bounded
// in time and memory. Oniguruma, which Hugging Face uses, differs in rare escapes (\h) and in U+180E, a space here.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "witan/tokenizer/scanners.h"

namespace witan {

// Immutable: split() may be called from several threads.
class RegexSplitter {
 public:
  // Throws DataError for an expression that does not compile.
  explicit RegexSplitter(std::string regex);
  ~RegexSplitter();
  RegexSplitter(RegexSplitter&&) noexcept;

  // Matches are pieces and so is the text between them (Hugging Face's behaviour "Isolated"). Throws DataError when one
  // match needs more steps or memory than the bounds.
  void split(std::string_view text, const PieceSink& sink) const;

 private:
  struct Code;
  std::string regex_;
  std::unique_ptr<Code> code_;
};

}  // namespace witan
