// Splits text with a regular expression that has no scanner of its own: Oniguruma, as in Hugging Face tokenizers, with
// our own Unicode tables (regex_translation.h), bounded in time and memory.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "witan/tokenizer/scanners.h"

namespace witan {

// Immutable: split() may be called from several threads.
class RegexSplitter {
 public:
  // Throws DataError for an expression that does not compile or may mean something else to Hugging Face.
  explicit RegexSplitter(std::string regex);
  ~RegexSplitter();
  RegexSplitter(RegexSplitter&&) noexcept;

  // Matches are pieces and so is the text between them (Hugging Face's behaviour "Isolated"); an empty match cuts. A
  // byte that is not part of valid UTF-8 counts as a control character. Throws DataError when a match needs more steps
  // or memory than the bounds.
  void split(std::string_view text, const PieceSink& sink) const;

 private:
  struct Code;
  std::string regex_;
  std::unique_ptr<Code> code_;
};

}  // namespace witan
