#include "witan/tokenizer/scanners.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "witan/tokenizer/unicode.h"

namespace witan {
namespace {

// What the patterns can tell apart, as a set of bits.
enum Kind : uint16_t {
  // Every character is one of these four.
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kOther = 8,
  // And some of these.
  kNewline = 1 << 4,    // \r or \n
  kMark = 1 << 5,       // \p{M}
  kSymbol = 1 << 6,     // \p{P} or \p{S}
  kUpper = 1 << 7,      // \p{Lu} or \p{Lt}
  kLower = 1 << 8,      // \p{Ll}
  kCaseless = 1 << 9,   // \p{Lm}, \p{Lo} or \p{M}
  kNoHan = 1 << 10,     // kCaseless, but not \p{Han}
  kHan = 1 << 11,       // \p{Han}
  kCjk = 1 << 12,       // DeepSeek's Chinese characters and kana
  kNewDigit = 1 << 13,  // see kDigitPattern
  kNoMark = 1 << 14,    // kOther, but not \p{M}
};
using Kinds = uint16_t;

// Digits that Rust's char::is_numeric knows, and thereby Hugging Face's Digits, and \p{N} does not.
constexpr std::pair<int32_t, int32_t> kDigitsSinceUnicode17[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

// Of every character what the properties in the patterns say.
std::vector<Kinds> make_kinds() {
  std::vector<Kinds> kinds(kCodePoints, kOther | kNoMark);
  const auto change = [&](const CharacterRanges& ranges, auto apply) {
    for (const auto& [first, last] : ranges)
      std::for_each(kinds.begin() + first, kinds.begin() + last + 1, [&](Kinds& kind) { kind = apply(kind); });
  };
  const auto set = [&](std::string_view property, int bits) {
    change(characters_with(property).value(), [&](Kinds) { return static_cast<Kinds>(bits); });
  };
  const auto add = [&](const CharacterRanges& ranges, Kind bit) {
    change(ranges, [&](Kinds kind) { return static_cast<Kinds>(kind | bit); });
  };
  set("Lu", kLetter | kUpper);
  set("Lt", kLetter | kUpper);
  set("Ll", kLetter | kLower);
  set("Lm", kLetter | kCaseless | kNoHan);
  set("Lo", kLetter | kCaseless | kNoHan);
  set("M", kOther | kMark | kCaseless | kNoHan);
  set("N", kNumber);
  set("P", kOther | kNoMark | kSymbol);
  set("S", kOther | kNoMark | kSymbol);
  set("Space", kSpace);
  change(characters_with("Han").value(), [](Kinds kind) { return static_cast<Kinds>((kind & ~kNoHan) | kHan); });
  add({{'\n', '\n'}, {'\r', '\r'}}, kNewline);
  add({{0x3040, 0x30FF}, {0x4E00, 0x9FA5}}, kCjk);
  add({std::begin(kDigitsSinceUnicode17), std::end(kDigitsSinceUnicode17)}, kNewDigit);
  return kinds;
}

const Kinds* kinds_of_characters() {
  static const std::vector<Kinds> kinds = make_kinds();
  return kinds.data();
}

constexpr std::array<Kinds, 128> make_ascii_kinds() {
  std::array<Kinds, 128> kinds{};
  for (int c = 0; c < 128; ++c) {
    const bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z', digit = c >= '0' && c <= '9';
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    kinds[c] = upper                    ? kLetter | kUpper
               : lower                  ? kLetter | kLower
               : digit                  ? kNumber
               : space                  ? kSpace
               : c < ' ' || c == '\x7F' ? kOther | kNoMark
                                        : kOther | kNoMark | kSymbol;
  }
  kinds['\r'] = kinds['\n'] = kSpace | kNewline;
  return kinds;
}
constexpr std::array<Kinds, 128> kAsciiKinds = make_ascii_kinds();

struct Character {
  Kinds kind;      // 0 at the end of the text
  uint8_t length;  // in bytes
};

Character character_beyond_ascii(const char* p, const char* end) {
  utf8proc_int32_t c = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(p), end - p, &c);
  if (length <= 0) return {kOther | kNoMark, 1};
  return {kinds_of_characters()[c], static_cast<uint8_t>(length)};
}

inline Character character(const char* p, const char* end) {
  if (p == end) return {0, 0};
  const auto byte = static_cast<uint8_t>(*p);
  return byte < 0x80 ? Character{kAsciiKinds[byte], 1} : character_beyond_ascii(p, end);
}

// The end of the run of characters of `kinds` that starts at p; at most `limit` characters.
inline const char* run(const char* p, const char* end, int kinds, int64_t limit = INT64_MAX) {
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
    if (const int kind = c.kind & (kLetter | kNumber | kOther)) return run(q + c.length, end, kind);
    return white_space(p, end);
  }
};

enum class Marks { as_symbols, as_letters };
template <int kMaxDigits, Marks kMarks = Marks::as_symbols>
struct Cl100k {
  static constexpr int kWord = kMarks == Marks::as_letters ? kLetter | kMark : kLetter;
  static constexpr int kRest = kMarks == Marks::as_letters ? kNoMark : kOther;

  static const char* next(const char* p, const char* end) {
    if (*p == '\'')
      if (const size_t length = contraction(p, end, Case::folded)) return p + length;
    const Character c = character(p, end);
    if (c.kind & kWord) return run(p + c.length, end, kWord);
    if (c.kind & kNumber) return run(p, end, kNumber, kMaxDigits);
    const Character second = character(p + c.length, end);
    if ((second.kind & kWord) && !(c.kind & kNewline)) return run(p + c.length, end, kWord);
    if ((c.kind & kRest) || (*p == ' ' && (second.kind & kRest)))
      return run(run(p + c.length, end, kRest), end, kNewline);
    const char* behind = lines(p, end);
    return behind != p ? behind : white_space(p, end);
  }
};

// The family of o200k: words of capitals and then small letters, each with the character before it that is neither
// letter, number nor newline. Kimi's words hold no Chinese characters, which are words of their own.
enum class Endings { none, contractions };
enum class Han { as_letters, apart };
template <Endings kEndings, int kMaxDigits, bool kSlashes, Han kHanWords>
struct Cased {
  static const char* next(const char* p, const char* end) {
    const Character c = character(p, end);
    if (kHanWords == Han::apart && (c.kind & kHan)) return run(p + c.length, end, kHan);
    const char* const behind = p + c.length;
    const bool prefix = !(c.kind & (kLetter | kNumber | kNewline));
    const char* q = prefix ? mixed(behind, end) : nullptr;
    if (!q) q = mixed(p, end);
    if (!q && prefix) q = capitals(behind, end);
    if (!q) q = capitals(p, end);
    if (q) {
      if (kEndings == Endings::contractions && q != end && *q == '\'') q += contraction(q, end, Case::folded);
      return q;
    }
    if (c.kind & kNumber) return run(p, end, kNumber, kMaxDigits);
    if ((c.kind & kOther) || (*p == ' ' && (character(behind, end).kind & kOther))) {
      q = run(behind, end, kOther);
      while (q != end && (*q == '\r' || *q == '\n' || (kSlashes && *q == '/'))) ++q;
      return q;
    }
    q = lines(p, end);
    return q != p ? q : white_space(p, end);
  }

 private:
  static constexpr int kFree = kHanWords == Han::apart ? kNoHan : kCaseless;

  // [upper, caseless]*[lower, caseless]+ at p: its end, or nullptr. Where no small letter follows the first run, that
  // gives back what is behind its last caseless character.
  static const char* mixed(const char* p, const char* end) {
    const char* last = nullptr;
    Character c = character(p, end);
    for (; c.kind & (kUpper | kFree); c = character(p, end)) {
      p += c.length;
      if (c.kind & kFree) last = p;
    }
    return c.kind & kLower ? run(p, end, kLower | kFree) : last;
  }

  // [upper, caseless]+ where mixed() found nothing.
  static const char* capitals(const char* p, const char* end) {
    const char* q = run(p, end, kUpper | kFree);
    return q == p ? nullptr : q;
  }
};

// What `Word` finds, and what stands between. Word::match returns p where it finds nothing there.
template <class Word>
struct Matches {
  static const char* next(const char* p, const char* end) {
    if (const char* q = Word::match(p, end); q != p) return q;
    do p += character(p, end).length;
    while (p != end && Word::match(p, end) == p);
    return p;
  }
};

// The last of DeepSeek's three patterns.
struct DeepSeek {
  static const char* match(const char* p, const char* end) {
    const Character c = character(p, end);
    const char* const behind = p + c.length;
    if ((c.kind & kSymbol) && static_cast<uint8_t>(*p) < 0x80) {
      const char* q = behind;
      while (q != end && ((*q >= 'a' && *q <= 'z') || (*q >= 'A' && *q <= 'Z'))) ++q;
      if (q != behind) return q;
    }
    if (!(c.kind & (kNewline | kLetter | kSymbol)))
      if (const char* q = run(behind, end, kLetter | kMark); q != behind) return q;
    if (c.kind & (kLetter | kMark)) return run(behind, end, kLetter | kMark);
    if ((c.kind & kSymbol) || (*p == ' ' && (character(behind, end).kind & kSymbol)))
      return run(run(behind, end, kSymbol), end, kNewline);
    if (const char* q = lines(p, end); q != p) return q;
    return c.kind & kSpace ? white_space(p, end) : p;
  }
};

// Runs of 1 to kMost characters of kKinds, and what stands between.
template <int kKinds, int64_t kMost>
struct Runs {
  static const char* next(const char* p, const char* end) {
    const char* q = run(p, end, kKinds, kMost);
    if (q != p) return q;
    for (Character c = character(q, end); c.kind && !(c.kind & kKinds); c = character(q, end)) q += c.length;
    return q;
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
  if (regex == kQwen35Pattern) return scan<Cl100k<1, Marks::as_letters>>;
  if (regex == kO200kPattern) return scan<Cased<Endings::contractions, 3, true, Han::as_letters>>;
  if (regex == kTekkenPattern) return scan<Cased<Endings::none, 1, true, Han::as_letters>>;
  if (regex == kKimiPattern) return scan<Cased<Endings::contractions, 3, false, Han::apart>>;
  if (regex == kDeepSeekCjkPattern) return scan<Runs<kCjk, INT64_MAX>>;
  if (regex == kDeepSeekPattern) return scan<Matches<DeepSeek>>;
  if (regex == kNumberPattern) return scan<Runs<kNumber, 1>>;
  if (regex == kNumberTripletPattern) return scan<Runs<kNumber, 3>>;
  if (regex == kNumberRunPattern) return scan<Runs<kNumber, INT64_MAX>>;
  if (regex == kDigitPattern) return scan<Runs<kNumber | kNewDigit, 1>>;
  if (regex == kDigitRunPattern) return scan<Runs<kNumber | kNewDigit, INT64_MAX>>;
  return nullptr;
}

}  // namespace witan
