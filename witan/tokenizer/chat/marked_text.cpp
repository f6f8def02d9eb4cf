#include "witan/tokenizer/chat/marked_text.h"

#include <algorithm>

namespace witan::jinja {

void MarkedText::append(const MarkedText& other, size_t begin, size_t count) {
  const size_t at = bytes.size(), end = begin + count;
  bytes.append(other.bytes, begin, count);
  auto span = std::ranges::lower_bound(other.given, begin + 1, {}, &TextSpan::end);
  for (; span != other.given.end() && span->begin < end; ++span) {
    const size_t first = std::max(span->begin, begin) - begin + at, last = std::min(span->end, end) - begin + at;
    if (!given.empty() && given.back().end == first)
      given.back().end = last;
    else
      given.push_back({first, last});
  }
}

MarkedText MarkedText::part(std::string_view view) const {
  MarkedText made{{}, {}, markup};
  if (!view.empty()) made.append(*this, static_cast<size_t>(view.data() - bytes.data()), view.size());
  return made;
}

MarkedText MarkedText::remade(std::string made) const {
  MarkedText text{std::move(made), {}, markup};
  if (!given.empty() && !text.bytes.empty()) text.given = {{0, text.bytes.size()}};
  return text;
}

MarkedText escaped(const MarkedText& text) {
  if (text.markup) return text;
  MarkedText made{{}, {}, true};
  for (size_t at = 0; at < text.bytes.size();) {
    const size_t special = std::min(text.bytes.find_first_of("&<>'\"", at), text.bytes.size());
    made.append(text, at, special - at);
    if (special == text.bytes.size()) break;
    const char c = text.bytes[special];
    const std::string_view written = c == '&'    ? "&amp;"
                                     : c == '<'  ? "&lt;"
                                     : c == '>'  ? "&gt;"
                                     : c == '\'' ? "&#39;"
                                                 : "&#34;";
    made.append(text.part(std::string_view(text.bytes).substr(special, 1)).remade(std::string(written)));
    at = special + 1;
  }
  return made;
}

}  // namespace witan::jinja
