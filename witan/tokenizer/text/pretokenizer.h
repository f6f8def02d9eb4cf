// Splits text into pre-tokens, within which byte-pair merges happen.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "witan/tokenizer/text/bert.h"
#include "witan/tokenizer/text/regex_splitter.h"
#include "witan/tokenizer/text/scanners.h"

namespace witan {

// Handling of the matches of a split pattern: each is a piece, is removed, forms one piece with adjacent matches, or is
// appended to the piece before or prepended to the piece after it.
enum class SplitBehavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
enum class PrependScheme { always, first, never };

// One step of a pre-tokenizer, in the terms of a tokenizer.json. Metaspace replaces each space by `pattern`, prepends
// one to the text (`prepend`: to every part between added tokens, or only to the first) and cuts before each (`cut`).
struct SplitStep {
  // words: splits into runs of word characters and runs of other characters, without white space. bert: removes white
  // space and isolates punctuation.
  enum class Kind { regex, literal, metaspace, punctuation, words, bert };

  SplitStep(std::string regex) : pattern(std::move(regex)) {}  // NOLINT(google-explicit-constructor): isolated matches
  SplitStep(const char* regex) : pattern(regex) {}             // NOLINT(google-explicit-constructor)
  static SplitStep metaspace(std::string replacement, PrependScheme prepend, bool cut) {
    SplitStep step(std::move(replacement));
    step.kind = Kind::metaspace;
    step.prepend = prepend;
    step.cut = cut;
    return step;
  }

  static SplitStep of(Kind kind) {
    SplitStep step("");
    step.kind = kind;
    return step;
  }

  std::string pattern;
  Kind kind = Kind::regex;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // the text between the matches counts as the matches
  PrependScheme prepend = PrependScheme::always;
  bool cut = true;
  bool operator==(const SplitStep&) const = default;
};

// Applies the steps in order: each splits the pieces of the previous one and sees nothing outside the piece. Known
// patterns run as linear scanners, others on Oniguruma. Without steps the whole text is one pre-token. Immutable:
// split() may be called from several threads.
class Pretokenizer {
 public:
  // Throws DataError for a pattern that does not compile.
  explicit Pretokenizer(const std::vector<SplitStep>& steps);

  // Passes the pre-tokens of `text` to `sink`, in order. `beginning` is the number of its bytes that come from the
  // first character of the whole text, which Metaspace needs; 0 after an added token. Throws DataError if an unknown
  // pattern exceeds its limits (see RegexSplitter).
  void split(std::string_view text, const PieceSink& sink, size_t beginning = 1) const;
  // Passes several pieces at once if they come from a scanner.
  void split_pieces(std::string_view text, const PiecesSink& sink, size_t beginning = 1) const;

 private:
  // Finds matches and applies a SplitBehavior to them. (Isolated matches need only a Scanner or RegexSplitter.)
  struct Matcher {
    SplitStep step;
    std::variant<std::monostate, Scanner, RegexSplitter> regex;
    void (*match)(std::string_view text, const MatchSink& sink) = nullptr;  // for a class of characters
    void split(std::string_view text, const PieceSink& sink) const;
  };
  struct Metaspace {
    SplitStep step;
    // The pieces belong to a new text; `sink` also gets how many bytes of each come from the first character.
    void split(std::string_view text, size_t beginning,
               const std::function<void(std::string_view, size_t)>& sink) const;
  };
  using Splitter = std::variant<Scanner, RegexSplitter, Matcher, Metaspace>;
  struct Part {
    std::string_view text;
    const char* readable_end;
    size_t beginning;
    // The part for `piece`, which lies in this part's text.
    Part of(std::string_view piece) const {
      const auto at = static_cast<size_t>(piece.data() - text.data());
      return {piece, readable_end, beginning - std::min(at, beginning)};
    }
  };
  void split_from(size_t level, const Part& part, const PiecesSink& sink) const;
  void scan_from(size_t level, Scanner scanner, const Part& part, const PiecesSink& sink) const;

  std::vector<Splitter> splitters_;
};

}  // namespace witan
