// Text of templates, and the operations of Python's strings on UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/tokenizer/text/added_tokens.h"

namespace witan::jinja {

// Text that records which of its bytes come from the conversation rather than from the template. Special tokens that a
// chat template writes are control tokens; those spelled in a message are text (Tokenizer::encode_to() with literal
// spans).
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

enum class Ends { both, left, right };

// Removes Unicode white space, or the characters in `among`, from the ends.
std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> among = {});
// Splits at white space, or at a separator, which must not be empty. Makes at most `most` cuts, unless it is negative.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t most,
                                    bool from_right);
std::vector<std::string_view> split_lines(std::string_view text);
// Replaces at most `most` times, unless it is negative.
MarkedText replace_all(const MarkedText& text, std::string_view old, const MarkedText& with, int64_t most);
int64_t count_of(std::string_view text, std::string_view part);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
// Capitalise every word, as Python's str.title() and as Jinja's filter `title` define words.
std::string title(std::string_view text);
std::string filter_title(std::string_view text);
// How repr() escapes one character between these quotes; empty if it does not.
std::string repr_escape(std::string_view one, char quote);

}  // namespace witan::jinja
