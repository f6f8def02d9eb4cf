// Splits text by a regular expression for which there is no scanner: on Oniguruma, as Hugging Face tokenizers does.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "witan/tokenizer/text/bounded_regex.h"
#include "witan/tokenizer/text/scanners.h"

namespace witan {

// Immutable: split() may be called from several threads.
class RegexSplitter {
 public:
  // Throws DataError for an expression that does not compile or may differ in meaning from Hugging Face tokenizers.
  explicit RegexSplitter(std::string regex);
  // Matches and the text between them are pieces (Hugging Face's behavior "Isolated"); an empty match also splits. A
  // byte that is not part of valid UTF-8 counts as a control character. Throws DataError if a match exceeds the limits
  // of time or memory.
  void split(std::string_view text, const PieceSink& sink) const;

  // Passes the matches and the text between them, in order; `matches` distinguishes them. Matches may be empty.
  void each(std::string_view text, const std::function<void(std::string_view piece, bool matches)>& sink) const;

 private:
  BoundedRegex regex_;
};

// Rewrites a regular expression of a tokenizer.json so that its matches depend neither on the version of Oniguruma on
// this system nor on its Unicode tables: \p{...}, \w, \d, \s, \b and POSIX brackets are replaced by their characters
// (unicode.h). Throws DataError naming the construct and its replacement if another version of Oniguruma might read the
// expression differently, or if the tables do not contain a property. Other mistakes are left to Oniguruma to report.
std::string with_own_unicode(std::string_view regex);

}  // namespace witan
