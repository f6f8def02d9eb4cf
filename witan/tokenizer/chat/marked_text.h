// Text that knows which of its bytes come from the conversation and not from the template. A chat template's own
// special tokens are control tokens; those that a message spells are text (Tokenizer::encode() with literal spans).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/tokenizer/text/added_tokens.h"

namespace witan::jinja {

struct MarkedText {
  std::string bytes = {};
  std::vector<TextSpan> given = {};  // what messages, tools and variables hold: in order, apart from each other
  bool markup = false;               // Jinja's Markup: `safe` or escaped, so that + and % escape what they add

  void append(std::string_view own) { bytes += own; }
  void append(const MarkedText& other) { append(other, 0, other.bytes.size()); }
  // Bytes [begin, begin + count) of the other text.
  void append(const MarkedText& other, size_t begin, size_t count);
  // The part that the view shows, which is one of `bytes`.
  MarkedText part(std::string_view view) const;
  // What a function made of this text as a whole: all of it is given if any of this is.
  MarkedText remade(std::string made) const;
};

// With &, <, >, ' and " as HTML writes them; markup stays as it is.
MarkedText escaped(const MarkedText& text);

}  // namespace witan::jinja
