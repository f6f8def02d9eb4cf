#include "witan/tokenizer/scanners.h"

#include <utf8proc.h>

#include <array>
#include <utility>

namespace witan {
namespace {

// What the patterns can tell apart, as a set of bits.
enum Kind : uint8_t { kLetter = 1, kNumber = 2, kSpace = 4, kNewline = 8 /* \r or \n, with kSpace */, kOther = 16 };

constexpr std::array<uint8_t, 128> make_ascii_kinds() {
  std::array<uint8_t, 128> kinds{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool digit = c >= '0' && c <= '9';
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    kinds[c] = letter ? kLetter : digit ? kNumber : space ? kSpace : kOther;
  }
  kinds['\r'] = kinds['\n'] = kSpace | kNewline;
  return kinds;
}
constexpr std::array<uint8_t, 128> kAsciiKinds = make_ascii_kinds();

// \s is Unicode's White_Space, as in Oniguruma and Rust.
bool is_white_space(utf8proc_int32_t c) {
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

uint8_t kind_of(utf8proc_int32_t c) {
  if (is_white_space(c)) return kSpace;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    default:
      return kOther;
  }
}

struct Character {
  uint8_t kind;    // 0 at the end of the text
  uint8_t length;  // in bytes
};

Character character_beyond_ascii(const char* p, const char* end) {
  utf8proc_int32_t c = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(p), end - p, &c);
  if (length <= 0) return {kOther, 1};
  return {kind_of(c), static_cast<uint8_t>(length)};
}

inline Character character(const char* p, const char* end) {
  if (p == end) return {0, 0};
  const auto byte = static_cast<uint8_t>(*p);
  return byte < 0x80 ? Character{kAsciiKinds[byte], 1} : character_beyond_ascii(p, end);
}

// The end of the run of characters of `kinds` that starts at p; at most `limit` characters.
inline const char* run(const char* p, const char* end, uint8_t kinds, int64_t limit = INT64_MAX) {
  for (; limit > 0; --limit) {
    const Character c = character(p, end);
    if (!(c.kind & kinds)) break;
    p += c.length;
  }
  return p;
}

enum class Case { exact, folded };

// 's|'t|'re|'ve|'m|'ll|'d at p, which is an apostrophe: its length, or 0. Folded, ſ (U+017F) is an s.
size_t contraction(const char* p, const char* end, Case letters) {
  const auto letter = [&](ptrdiff_t i) -> char {
    if (end - p <= i) return '\0';
    const bool upper = p[i] >= 'A' && p[i] <= 'Z';
    return letters == Case::folded && upper ? static_cast<char>(p[i] | 0x20) : p[i];
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  if (letters == Case::folded && first == '\xC5' && second == '\xBF') return 3;
  return 0;
}

// \s+(?!\S)|\s+ at p: the whole run where the text ends with it, else all but its last character, which is left for the
// word behind it, unless it is the only one.
const char* white_space(const char* p, const char* end) {
  const char* last = p;  // start of the run's last character
  const char* q = p;
  for (Character c = character(q, end); c.kind & kSpace; c = character(q, end)) {
    last = q;
    q += c.length;
  }
  return q == end || last == p ? q : last;
}

// \s*[\r\n]+ at p: behind the last newline of the run of spaces, or p where there is none.
const char* lines(const char* p, const char* end) {
  const char* behind = p;
  for (Character c = character(p, end); c.kind & kSpace; c = character(p, end)) {
    p += c.length;
    if (c.kind & kNewline) behind = p;
  }
  return behind;
}

struct Gpt2 {
  static const char* next(const char* p, const char* end) {
    if (*p == '\'')
      if (const size_t length = contraction(p, end, Case::exact)) return p + length;
    const char* q = *p == ' ' ? p + 1 : p;
    const Character c = character(q, end);
    if (c.kind & (kLetter | kNumber | kOther)) return run(q + c.length, end, c.kind);
    return white_space(p, end);
  }
};

template <int kMaxDigits>
struct Cl100k {
  static const char* next(const char* p, const char* end) {
    if (*p == '\'')
      if (const size_t length = contraction(p, end, Case::folded)) return p + length;
    const Character c = character(p, end);
    if (c.kind == kLetter) return run(p + c.length, end, kLetter);
    if (c.kind == kNumber) return run(p, end, kNumber, kMaxDigits);
    const Character second = character(p + c.length, end);
    if (second.kind == kLetter && !(c.kind & kNewline)) return run(p + c.length, end, kLetter);
    if (c.kind == kOther || (*p == ' ' && second.kind == kOther))
      return run(run(p + c.length, end, kOther), end, kNewline);
    const char* behind = lines(p, end);
    return behind != p ? behind : white_space(p, end);
  }
};

// \p{N}{1,kMaxDigits}, and what stands between.
template <int64_t kMaxDigits>
struct Digits {
  static const char* next(const char* p, const char* end) {
    const char* q = run(p, end, kNumber, kMaxDigits);
    return q != p ? q : run(p, end, kLetter | kSpace | kOther);
  }
};

template <class Pattern>
void scan(std::string_view text, const PieceSink& sink) {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    const char* q = Pattern::next(p, end);
    sink({p, static_cast<size_t>(q - p)});
    p = q;
  }
}

// Later releases of tiktoken write the same language with possessive quantifiers.
constexpr std::string_view kCl100kPossessive =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
    R"(|\s*[\r\n]|\s+(?!\S)|\s+)";

}  // namespace

Scanner scanner_for(std::string_view regex) {
  if (regex == kGpt2Pattern) return scan<Gpt2>;
  if (regex == kLlama3Pattern || regex == kCl100kPossessive) return scan<Cl100k<3>>;
  if (regex == kQwen2Pattern) return scan<Cl100k<1>>;
  if (regex == kDigitPattern) return scan<Digits<1>>;
  if (regex == kDigitTripletPattern) return scan<Digits<3>>;
  if (regex == kDigitRunPattern) return scan<Digits<INT64_MAX>>;
  return nullptr;
}

}  // namespace witan
