#include "witan/tokenizer/text/regex_splitter.h"

#include <utility>

namespace witan {

RegexSplitter::RegexSplitter(std::string regex) : regex_(std::move(regex), "the tokenizer's pattern") {}

void RegexSplitter::split(std::string_view text, const PieceSink& sink) const {
  each(text, [&](std::string_view piece, bool) {
    if (!piece.empty()) sink(piece);
  });
}

void RegexSplitter::each(std::string_view text,
                         const std::function<void(std::string_view piece, bool matches)>& sink) const {
  BoundedRegex::Search search(regex_, text);
  size_t done = 0;                             // end of the last piece
  size_t last_match = std::string_view::npos;  // the end of the last match
  for (size_t from = 0; from <= text.size();) {
    const auto found = search.find(from);
    if (!found) break;
    const auto [first, last] = std::pair(found->begin, found->end);
    if (first == last && last == last_match) {  // an empty match right after a match: continue one character further
      if (last == text.size()) break;
      from = last + search.length_of_character(last);
      continue;
    }
    if (first > done) sink(text.substr(done, first - done), false);
    sink(text.substr(first, last - first), true);
    done = from = last_match = last;
  }
  if (done < text.size()) sink(text.substr(done), false);
}

}  // namespace witan
