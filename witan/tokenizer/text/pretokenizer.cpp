#include "witan/tokenizer/text/pretokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

// Merges adjacent pieces as a SplitBehavior prescribes.
class PieceMerger {
 public:
  explicit PieceMerger(SplitBehavior behavior) : behavior_(behavior) {}

  void put(std::string_view piece, bool matches) {
    const bool previous = std::exchange(previous_, matches);
    if (behavior_ == SplitBehavior::removed && matches) return;
    if (!pieces_.empty() && joins(matches, previous))
      pieces_.back() = {pieces_.back().data(), pieces_.back().size() + piece.size()};
    else
      pieces_.push_back(piece);
  }
  void flush(const PieceSink& sink) {
    for (const std::string_view piece : pieces_)
      if (!piece.empty()) sink(piece);
  }

 private:
  bool joins(bool matches, bool previous) const {
    switch (behavior_) {
      case SplitBehavior::contiguous:
        return matches == previous;
      case SplitBehavior::merged_with_previous:
        return matches && !previous;
      case SplitBehavior::merged_with_next:  // not if another match follows the match
        return previous && !matches;
      default:
        return false;
    }
  }

  SplitBehavior behavior_;
  bool previous_ = false;
  std::vector<std::string_view> pieces_;
};

// Pieces per call of a scanner: enough to amortise the call, few enough to stay in the L1 cache.
constexpr size_t kPiecesAtOnce = 1024;

template <class Sink>
void each_run(Scanner scanner, std::string_view text, const char* readable_end, Sink sink) {
  std::array<const char*, kPiecesAtOnce> ends;
  const char* const end = text.data() + text.size();
  for (const char* begin = text.data(); begin != end;) {
    const size_t count = scanner(begin, end, ends);
    sink(Pieces{begin, {ends.data(), count}, readable_end});
    begin = ends[count - 1];
  }
}

template <class Sink>
void each_literal(std::string_view text, std::string_view pattern, Sink sink) {
  size_t done = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos; at = text.find(pattern, done)) {
    if (at > done) sink(text.substr(done, at - done), false);
    sink(text.substr(at, pattern.size()), true);
    done = at + pattern.size();
  }
  if (done < text.size()) sink(text.substr(done), false);
}

// The scanner that does the first three steps at once, or nullptr.
Scanner scanner_of_steps(std::span<const SplitStep> steps) {
  const auto isolates = [](const SplitStep& step) {
    return step.kind == SplitStep::Kind::regex && step.behavior == SplitBehavior::isolated;
  };
  if (steps.size() < 3 || !std::all_of(steps.begin(), steps.begin() + 3, isolates)) return nullptr;
  return scanner_for(steps[0].pattern, steps[1].pattern, steps[2].pattern);
}

}  // namespace

void Pretokenizer::Matcher::split(std::string_view text, const PieceSink& sink) const {
  PieceMerger merger(step.behavior);
  const auto put = [&](std::string_view piece, bool matches) { merger.put(piece, matches != step.invert); };
  if (match)
    match(text, put);
  else if (const auto* scanner = std::get_if<Scanner>(&regex))
    each_run(*scanner, text, text.data() + text.size(),
             [&](const Pieces& pieces) { pieces.each([&](std::string_view piece) { put(piece, true); }); });
  else if (const auto* any = std::get_if<RegexSplitter>(&regex))
    any->each(text, put);
  else
    each_literal(text, step.pattern, put);
  merger.flush(sink);
}

void Pretokenizer::Metaspace::split(std::string_view text, size_t beginning,
                                    const std::function<void(std::string_view, size_t)>& sink) const {
  const std::string_view space = step.pattern;
  std::string written = replace_all(text, " ", space);
  if (beginning > 0) beginning = replace_all(text.substr(0, beginning), " ", space).size();
  const bool prepends =
      step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && beginning > 0);
  if (prepends && !written.starts_with(space)) {
    written.insert(0, space);
    if (beginning > 0) beginning += space.size();
  }
  const std::string_view all = written;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    end = step.cut
              ? std::min(all.find(space, begin + (all.substr(begin).starts_with(space) ? space.size() : 0)), all.size())
              : all.size();
    sink(all.substr(begin, end - begin), beginning - std::min(begin, beginning));
  }
}

Pretokenizer::Pretokenizer(const std::vector<SplitStep>& steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const SplitStep& step = steps[i];
    if (const Scanner scanner = scanner_of_steps(std::span(steps).subspan(i))) {
      splitters_.emplace_back(scanner);
      i += 2;
      continue;
    }
    if (step.kind == SplitStep::Kind::metaspace) {
      splitters_.emplace_back(Metaspace{step});
      continue;
    }
    if (step.kind == SplitStep::Kind::words || step.kind == SplitStep::Kind::bert) {
      SplitStep removing = step;
      removing.behavior = SplitBehavior::removed;
      removing.invert = step.kind == SplitStep::Kind::words;
      splitters_.emplace_back(Matcher{removing, {}, removing.invert ? match_words : match_white_space});
    }
    if (step.kind == SplitStep::Kind::punctuation || step.kind == SplitStep::Kind::bert)
      splitters_.emplace_back(Matcher{step, {}, match_punctuation});
    if (step.kind != SplitStep::Kind::regex && step.kind != SplitStep::Kind::literal) continue;
    const bool literal = step.kind == SplitStep::Kind::literal;
    const Scanner scanner = literal ? nullptr : scanner_for(step.pattern);
    // If the matches cover the whole text, there is nothing between them to remove.
    const bool covers = scanner && step.pattern.ends_with("|\\s+");
    const bool keeps_matches =
        step.behavior == SplitBehavior::isolated || (step.behavior == SplitBehavior::removed && step.invert && covers);
    if (!literal && keeps_matches) {
      if (scanner)
        splitters_.emplace_back(scanner);
      else
        splitters_.emplace_back(RegexSplitter(step.pattern));
      continue;
    }
    Matcher matcher{step, {}, nullptr};
    if (covers)
      matcher.regex = scanner;
    else if (!literal)
      matcher.regex.emplace<RegexSplitter>(step.pattern);
    splitters_.emplace_back(std::move(matcher));
  }
}

void Pretokenizer::split(std::string_view text, const PieceSink& sink, size_t beginning) const {
  split_pieces(
      text, [&](const Pieces& pieces) { pieces.each(sink); }, beginning);
}

void Pretokenizer::split_pieces(std::string_view text, const PiecesSink& sink, size_t beginning) const {
  if (!text.empty()) split_from(0, {text, text.data() + text.size(), beginning}, sink);
}

void Pretokenizer::split_from(size_t level, const Part& part, const PiecesSink& sink) const {
  if (level == splitters_.size()) {
    const char* const end = part.text.data() + part.text.size();
    return sink({part.text.data(), {&end, 1}, part.readable_end});
  }
  const Splitter& splitter = splitters_[level];
  const auto next = [&](std::string_view piece) { split_from(level + 1, part.of(piece), sink); };
  if (const auto* scanner = std::get_if<Scanner>(&splitter))
    scan_from(level, *scanner, part, sink);
  else if (const auto* regex = std::get_if<RegexSplitter>(&splitter))
    regex->split(part.text, next);
  else if (const auto* matcher = std::get_if<Matcher>(&splitter))
    matcher->split(part.text, next);
  else
    std::get<Metaspace>(splitter).split(part.text, part.beginning, [&](std::string_view piece, size_t beginning) {
      split_from(level + 1, {piece, piece.data() + piece.size(), beginning}, sink);
    });
}

void Pretokenizer::scan_from(size_t level, Scanner scanner, const Part& part, const PiecesSink& sink) const {
  each_run(scanner, part.text, part.readable_end, [&](const Pieces& pieces) {
    if (level + 1 == splitters_.size()) return sink(pieces);
    pieces.each([&](std::string_view piece) { split_from(level + 1, part.of(piece), sink); });
  });
}

}  // namespace witan
