// Text that records which of its bytes come from the conversation rather than from the template. Special tokens that a
// chat template writes are control tokens; those spelled in a message are text (Tokenizer::encode_to() with literal
// spans).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/tokenizer/text/added_tokens.h"

namespace witan::jinja {

struct MarkedText {
  std::string bytes = {};
  std::vector<TextSpan> given = {};  // from messages, tools and variables: sorted and disjoint
  bool markup = false;               // Jinja's Markup, from `safe` or `escape`: + escapes what it appends

  void append(std::string_view own) { bytes += own; }
  void append(const MarkedText& other) { append(other, 0, other.bytes.size()); }
  // Appends the bytes [begin, begin + count) of the other text.
  void append(const MarkedText& other, size_t begin, size_t count);
  // The part that `view` covers, a view of `bytes`.
  MarkedText part(std::string_view view) const;
  // `made` is the result of a function of the whole text: all of it counts as given if any of this text does.
  MarkedText remade(std::string made) const;
};

// Escapes &, <, >, ' and " for HTML, unless the text is markup already.
MarkedText escaped(const MarkedText& text);

}  // namespace witan::jinja
