// Splits text with a regular expression that has no scanner: with Oniguruma, as in Hugging Face tokenizers, with
// Witan's own Unicode tables (with_own_unicode()), bounded in time and memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "witan/tokenizer/text/pieces.h"

namespace witan {

// Immutable: split() may be called from several threads.
class RegexSplitter {
 public:
  // Throws DataError for an expression that does not compile or may mean something else in Hugging Face tokenizers.
  explicit RegexSplitter(std::string regex);
  ~RegexSplitter();
  RegexSplitter(RegexSplitter&&) noexcept;

  // Both matches and the text between them are pieces (Hugging Face's behavior "Isolated"); an empty match also splits.
  // A byte that is not part of valid UTF-8 counts as a control character. Throws DataError if a match exceeds the
  // bounds of time or memory.
  void split(std::string_view text, const PieceSink& sink) const;

  // The matches and what stands between them, in order, with which of both a piece is; matches may be empty.
  void each(std::string_view text, const std::function<void(std::string_view piece, bool matches)>& sink) const;

 private:
  struct Code;
  std::string regex_;
  std::unique_ptr<Code> code_;
};

// Rewrites a regular expression of a tokenizer.json so that its matches depend neither on the version of Oniguruma on
// this system nor on its Unicode tables: \p{...}, \w, \d, \s, \b and POSIX brackets are replaced by their characters
// (unicode.h). Throws DataError naming the construct and its replacement if another version of Oniguruma might read the
// expression differently, or if the tables do not contain a property. Other mistakes are left to Oniguruma to report.
std::string with_own_unicode(std::string_view regex);

}  // namespace witan
