// Splits text into pre-tokens, within which byte-pair merges happen.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "witan/tokenizer/pieces.h"
#include "witan/tokenizer/regex_splitter.h"
#include "witan/tokenizer/scanners.h"
#include "witan/tokenizer/tokenizer_spec.h"

namespace witan {

// A chain of steps: each splits the pieces left by the previous one, and sees nothing outside the piece. Known patterns
// run as linear scanners, others with Oniguruma. Without steps the whole text is one pre-token. Immutable: split() may
// be called from several threads.
class Pretokenizer {
 public:
  // Throws DataError for a pattern that does not compile.
  explicit Pretokenizer(const std::vector<SplitStep>& steps);

  // Passes the pre-tokens of `text` to `sink`, in order. `is_first`: the text is not what stands behind an added token.
  // Throws DataError if an unknown pattern exceeds its bounds (see RegexSplitter).
  void split(std::string_view text, const PieceSink& sink, bool is_first = true) const;
  // The same, with several pieces at once where they come from a scanner.
  void split_pieces(std::string_view text, const PiecesSink& sink, bool is_first = true) const;

 private:
  // Finds matches and applies a behavior to them; Metaspace; or, where matches are isolated, only splits.
  struct Matcher {
    SplitStep step;
    std::variant<std::monostate, Scanner, RegexSplitter> regex;
    void split(std::string_view text, const PieceSink& sink) const;
  };
  struct Metaspace {
    SplitStep step;
    void split(std::string_view text, const PieceSink& sink, bool is_first) const;
  };
  using Splitter = std::variant<Scanner, RegexSplitter, Matcher, Metaspace>;
  struct Part {
    std::string_view text;
    const char* readable_end;
    bool is_first;
  };
  void split_from(size_t level, const Part& part, const PiecesSink& sink) const;
  void scan_from(size_t level, Scanner scanner, const Part& part, const PiecesSink& sink) const;

  std::vector<Splitter> splitters_;
};

}  // namespace witan
