#include "witan/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "witan/tokenizer/unicode.h"

namespace witan {
namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

int combining_class(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

// The canonical ordering algorithm. utf8proc's own takes quadratic time on a long run of marks.
void order_marks(CodePoints& text) {
  for (auto run = text.begin(); run != text.end();) {
    const auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
    run = std::find_if_not(run, text.end(), is_starter);
    const auto end = std::find_if(run, text.end(), is_starter);
    std::stable_sort(run, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

void append(std::string& out, utf8proc_int32_t c) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto length = utf8proc_encode_char(c, bytes.data());
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length));
}

// Appends decomposed characters in canonical order, composed; leaves none of them.
void compose(CodePoints& decomposed, std::string& out) {
  order_marks(decomposed);
  constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto count =
      utf8proc_normalize_utf32(decomposed.data(), static_cast<utf8proc_ssize_t>(decomposed.size()), options);
  for (utf8proc_ssize_t i = 0; i < count; ++i) append(out, decomposed[static_cast<size_t>(i)]);
  decomposed.clear();
}

}  // namespace

bool may_change_under_nfc(std::string_view text) {
  // U+0300 is CC 80 in UTF-8; every later character starts with a byte of at least CC.
  return std::any_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) >= 0xCC; });
}

// A character that the reference does not know has no decomposition, no place among marks and no composition to it: it
// stands for itself, and what is before and behind it is normalised on its own. Of those it knows, Unicode promises
// that no later version normalises them otherwise.
std::string to_nfc(std::string_view text) {
  if (!may_change_under_nfc(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  CodePoints decomposed;
  const auto* p = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(p, left, &c);
    if (bytes <= 0) return std::string(text);  // not valid UTF-8
    p += bytes;
    left -= bytes;
    // utf8proc (2.8) takes U+11A7 for a trailing consonant of Hangul, which begin behind it, and swallows it.
    if (c >= 0x80 && (!is_in_unicode_9(c) || c == 0x11A7)) {
      compose(decomposed, out);
      append(out, c);
      continue;
    }
    std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 4
    int boundary = 0;
    const auto count = utf8proc_decompose_char(c, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
    decomposed.insert(decomposed.end(), parts.begin(), parts.begin() + count);
  }
  compose(decomposed, out);
  return out;
}

}  // namespace witan
