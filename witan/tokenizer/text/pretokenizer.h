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
#include "witan/tokenizer/text/pieces.h"
#include "witan/tokenizer/text/regex_splitter.h"
#include "witan/tokenizer/text/scanners.h"

namespace witan {

// What becomes of the matches of a split pattern: a piece each, nothing, one piece with the matches next to it, or a
// part of the piece before or behind it.
enum class SplitBehavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
enum class PrependScheme { always, first, never };

// One step of the pre-tokenizer. Metaspace writes `pattern` for every space, puts one before the text (`prepend`:
// before every part between added tokens, or only before the first) and cuts before each (`cut`).
struct SplitStep {
  // punctuation, words (runs of word characters and of others that are not white space), bert: white space removed and
  // punctuation isolated
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
  bool invert = false;  // what stands between the matches is what counts as matched
  PrependScheme prepend = PrependScheme::always;
  bool cut = true;
  bool operator==(const SplitStep&) const = default;
};

// A chain of steps: each splits the pieces left by the previous one, and sees nothing outside the piece. Known patterns
// run as linear scanners, others with Oniguruma. Without steps the whole text is one pre-token. Immutable: split() may
// be called from several threads.
class Pretokenizer {
 public:
  // Throws DataError for a pattern that does not compile.
  explicit Pretokenizer(const std::vector<SplitStep>& steps);

  // Passes the pre-tokens of `text` to `sink`, in order. `beginning`: so many of its bytes come from the first
  // character of the whole text, which Metaspace asks for; 0 behind an added token. Throws DataError if an unknown
  // pattern exceeds its bounds (see RegexSplitter).
  void split(std::string_view text, const PieceSink& sink, size_t beginning = 1) const;
  // The same, with several pieces at once where they come from a scanner.
  void split_pieces(std::string_view text, const PiecesSink& sink, size_t beginning = 1) const;

 private:
  // Finds matches and applies a behavior to them; Metaspace; or, where matches are isolated, only splits.
  struct Matcher {
    SplitStep step;
    std::variant<std::monostate, Scanner, RegexSplitter> regex;
    void (*match)(std::string_view text, const MatchSink& sink) = nullptr;  // a class of characters
    void split(std::string_view text, const PieceSink& sink) const;
  };
  struct Metaspace {
    SplitStep step;
    // Its pieces are of another text; `sink` is told how many bytes of each come from the first character.
    void split(std::string_view text, size_t beginning,
               const std::function<void(std::string_view, size_t)>& sink) const;
  };
  using Splitter = std::variant<Scanner, RegexSplitter, Matcher, Metaspace>;
  struct Part {
    std::string_view text;
    const char* readable_end;
    size_t beginning;
    // What split() passes on of it: `piece` is part of its text.
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
