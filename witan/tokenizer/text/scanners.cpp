#include "witan/tokenizer/text/scanners.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "witan/tokenizer/text/ascii_block.h"
#include "witan/tokenizer/text/ascii_pieces.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

// The classes of characters that the patterns distinguish, as bits.
enum CharacterKind : uint16_t {
  // Each character is in exactly one of these four classes.
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kOther = 8,
  // It may be in any of these.
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
  kNoCjk = 1 << 15,     // not kCjk
};
using Kinds = uint16_t;

// Digits for Rust's char::is_numeric, and thus for Hugging Face's Digits, that are not in \p{N}.
constexpr std::pair<int32_t, int32_t> kDigitsSinceUnicode17[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

// The classes of every character, from the properties in the patterns.
std::vector<Kinds> make_kinds() {
  std::vector<Kinds> kinds(kCodePoints, kOther | kNoMark);
  const auto change = [&](const CharacterRanges& ranges, auto apply) {
    for (const auto& [first, last] : ranges)
      std::for_each(kinds.begin() + first, kinds.begin() + last + 1, [&](Kinds& kind) { kind = apply(kind); });
  };
  const auto set = [&](std::string_view property, int bits) {
    change(characters_with(property).value(), [&](Kinds) { return static_cast<Kinds>(bits); });
  };
  const auto add = [&](const CharacterRanges& ranges, CharacterKind bit) {
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
  for (Kinds& kind : kinds) kind |= (kind & kCjk) != 0 ? 0 : kNoCjk;
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
  for (Kinds& kind : kinds) kind |= kNoCjk;
  return kinds;
}
constexpr std::array<Kinds, 128> kAsciiKinds = make_ascii_kinds();

struct Character {
  Kinds kind;      // 0 at the end of the text, as is the length
  uint8_t length;  // in bytes
};

constexpr bool continues(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
}

// Decodes two and three bytes itself, which covers nearly all characters, and others through utf8proc.
inline Character character_beyond_ascii(const char* p, const char* end) {
  const auto first = static_cast<uint8_t>(*p);
  if (first >= 0xE0 && first < 0xF0 && end - p >= 3 && continues(p[1]) && continues(p[2])) {
    const int32_t c = (first & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    if (c >= 0x800 && (c & 0xF800) != 0xD800) return {kinds_of_characters()[c], 3};
  } else if (first >= 0xC2 && first < 0xE0 && end - p >= 2 && continues(p[1])) {
    return {kinds_of_characters()[(first & 0x1F) << 6 | (p[1] & 0x3F)], 2};
  }
  utf8proc_int32_t c = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(p), end - p, &c);
  if (length <= 0) return {kOther | kNoMark | kNoCjk, 1};
  return {kinds_of_characters()[c], static_cast<uint8_t>(length)};
}

// The character at p. A character of the classes kEnds counts as the end of the text.
template <int kEnds = 0>
inline Character character(const char* p, const char* end) {
  if (p == end) return {0, 0};
  const auto byte = static_cast<uint8_t>(*p);
  const Character c = byte < 0x80 ? Character{kAsciiKinds[byte], 1} : character_beyond_ascii(p, end);
  return (c.kind & kEnds) != 0 ? Character{0, 0} : c;
}

// Skips ASCII characters of kKinds at p eight bytes at a time, where that is fast; may stop early.
template <int kKinds>
const char* skip_ascii_run(const char* p, const char* end) {
  if constexpr ((kKinds & kLetter) == kLetter)
    return skip_ascii(p, end, ascii_letters);
  else if constexpr ((kKinds & kLower) != 0)
    return skip_ascii(p, end, ascii_small_letters);
  else
    return p;
}

// The end of the run of characters of the classes kKinds that starts at p.
template <int kKinds, int kEnds = 0>
const char* run(const char* p, const char* end) {
  for (;;) {
    if constexpr ((kEnds & kNoCjk) == 0) p = skip_ascii_run<kKinds>(p, end);
    const Character c = character<kEnds>(p, end);
    if (!(c.kind & kKinds)) return p;
    p += c.length;
  }
}

// Skips at most `limit` characters.
template <int kKinds>
const char* short_run(const char* p, const char* end, int64_t limit) {
  for (; limit > 0; --limit) {
    const Character c = character(p, end);
    if (!(c.kind & kKinds)) break;
    p += c.length;
  }
  return p;
}

enum class Case { exact, folded };

// The length of the contraction 's|'t|'re|'ve|'m|'ll|'d at the apostrophe p, or 0. Folded, ſ (U+017F) counts as s.
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

// \s+(?!\S)|\s+ at p: the whole run if the text ends with it, else all but its last character, which is left for the
// word that follows, unless it is the only one.
template <int kEnds = 0>
const char* white_space(const char* p, const char* end) {
  const char* last = p;  // start of the run's last character
  const char* q = p;
  Character c = character<kEnds>(q, end);
  for (; c.kind & kSpace; c = character<kEnds>(q, end)) {
    last = q;
    q += c.length;
  }
  return c.kind == 0 || last == p ? q : last;
}

// \s*[\r\n]+ at p: the end of the last newline in the run of white space, or p if there is none.
template <int kEnds = 0>
const char* lines(const char* p, const char* end) {
  const char* after = p;
  for (Character c = character<kEnds>(p, end); c.kind & kSpace; c = character<kEnds>(p, end)) {
    p += c.length;
    if (c.kind & kNewline) after = p;
  }
  return after;
}

struct Gpt2 {
  static constexpr AsciiRules kAscii = {.digits = 0, .splits_controls = true, .contractions = Contractions::exact};

  static const char* next(const char* p, const char* end) {
    if (*p == '\'')
      if (const size_t length = contraction(p, end, Case::exact)) return p + length;
    const char* q = *p == ' ' ? p + 1 : p;
    const Character c = character(q, end);
    if (c.kind & kLetter) return run<kLetter>(q + c.length, end);
    if (c.kind & kNumber) return run<kNumber>(q + c.length, end);
    if (c.kind & kOther) return run<kOther>(q + c.length, end);
    return white_space(p, end);
  }
};

enum class Marks { as_symbols, as_letters };
template <int kMaxDigits, Marks kMarks = Marks::as_symbols>
struct Cl100k {
  static constexpr int kWord = kMarks == Marks::as_letters ? kLetter | kMark : kLetter;
  static constexpr int kRest = kMarks == Marks::as_letters ? kNoMark : kOther;
  static constexpr AsciiRules kAscii = {.letters_take_any = true,
                                        .digits = kMaxDigits,
                                        .newlines_are_apart = true,
                                        .splits_controls = true,
                                        .contractions = Contractions::folded};

  static const char* next(const char* p, const char* end) {
    if (*p == '\'')
      if (const size_t length = contraction(p, end, Case::folded)) return p + length;
    const Character c = character(p, end);
    if (c.kind & kWord) return run<kWord>(p + c.length, end);
    if (c.kind & kNumber) return short_run<kNumber>(p, end, kMaxDigits);
    const Character second = character(p + c.length, end);
    if ((second.kind & kWord) && !(c.kind & kNewline)) return run<kWord>(p + c.length, end);
    if ((c.kind & kRest) || (*p == ' ' && (second.kind & kRest)))
      return run<kNewline>(run<kRest>(p + c.length, end), end);
    const char* after = lines(p, end);
    return after != p ? after : white_space(p, end);
  }
};

// The family of o200k: words are capitals followed by lower-case letters, with any one character before them that is
// neither letter, number nor newline. In Kimi's pattern Chinese characters are not part of these words but form their
// own.
enum class Endings { none, contractions };
enum class Han { as_letters, apart };
template <Endings kEndings, int kMaxDigits, bool kSlashes, Han kHanWords>
struct Cased {
  static constexpr AsciiRules kAscii = {
      .letters_take_any = true,
      .capitals_begin_words = true,
      .digits = kMaxDigits,
      .newlines_are_apart = true,
      .slashes_follow = kSlashes,
      .splits_controls = true,
      .contractions = kEndings == Endings::contractions ? Contractions::endings : Contractions::none};

  static const char* next(const char* p, const char* end) {
    const Character c = character(p, end);
    if (kHanWords == Han::apart && (c.kind & kHan)) return run<kHan>(p + c.length, end);
    const char* const after = p + c.length;
    const bool prefix = !(c.kind & (kLetter | kNumber | kNewline));
    const char* q = prefix ? mixed(after, end) : nullptr;
    if (!q) q = mixed(p, end);
    if (!q && prefix) q = capitals(after, end);
    if (!q) q = capitals(p, end);
    if (q) {
      if (kEndings == Endings::contractions && q != end && *q == '\'') q += contraction(q, end, Case::folded);
      return q;
    }
    if (c.kind & kNumber) return short_run<kNumber>(p, end, kMaxDigits);
    if ((c.kind & kOther) || (*p == ' ' && (character(after, end).kind & kOther))) {
      q = run<kOther>(after, end);
      while (q != end && (*q == '\r' || *q == '\n' || (kSlashes && *q == '/'))) ++q;
      return q;
    }
    q = lines(p, end);
    return q != p ? q : white_space(p, end);
  }

 private:
  static constexpr int kFree = kHanWords == Han::apart ? kNoHan : kCaseless;

  // [upper, caseless]*[lower, caseless]+ at p: its end, or nullptr. If no lower-case letter follows the first run, the
  // match ends with the last caseless character of the run.
  static const char* mixed(const char* p, const char* end) {
    const char* last = nullptr;
    Character c = character(p, end);
    for (; c.kind & (kUpper | kFree); c = character(p, end)) {
      p += c.length;
      if (c.kind & kFree) last = p;
    }
    return c.kind & kLower ? run<kLower | kFree>(p, end) : last;
  }

  // [upper, caseless]+, for use after mixed() found nothing.
  static const char* capitals(const char* p, const char* end) {
    const char* q = run<kUpper | kFree>(p, end);
    return q == p ? nullptr : q;
  }
};

// The matches of `Word` and the text between them, up to a character of kEnds. Word::match returns p if it does not
// match there.
template <class Word, int kEnds>
struct Matches {
  static const char* next(const char* p, const char* end) {
    if (const char* q = Word::match(p, end); q != p) return q;
    for (Character c = character<kEnds>(p, end); c.kind; c = character<kEnds>(p, end)) {
      p += c.length;
      if (Word::match(p, end) != p) break;
    }
    return p;
  }
};

// The last of DeepSeek's three patterns; a character of kEnds also ends the text.
template <int kEnds>
struct DeepSeek {
  static const char* match(const char* p, const char* end) {
    const Character c = character<kEnds>(p, end);
    const char* const after = p + c.length;
    if ((c.kind & kSymbol) && static_cast<uint8_t>(*p) < 0x80) {
      const char* q = after;
      while (q != end && ((*q >= 'a' && *q <= 'z') || (*q >= 'A' && *q <= 'Z'))) ++q;
      if (q != after) return q;
    }
    if (!(c.kind & (kNewline | kLetter | kSymbol)))
      if (const char* q = run<kLetter | kMark, kEnds>(after, end); q != after) return q;
    if (c.kind & (kLetter | kMark)) return run<kLetter | kMark, kEnds>(after, end);
    if ((c.kind & kSymbol) || (c.kind && *p == ' ' && (character<kEnds>(after, end).kind & kSymbol)))
      return run<kNewline, kEnds>(run<kSymbol, kEnds>(after, end), end);
    if (const char* q = lines<kEnds>(p, end); q != p) return q;
    return c.kind & kSpace ? white_space<kEnds>(p, end) : p;
  }
};

// All three of DeepSeek's patterns.
struct DeepSeekChain {
  static constexpr AsciiRules kAscii = {
      .letters_take_any = true, .digits = 3, .digits_end_texts = true, .newlines_are_apart = true};
  static const char* next(const char* p, const char* end) {
    const Character c = character(p, end);
    if (c.kind & kNumber) return short_run<kNumber>(p, end, 3);
    if (c.kind & kCjk) return Matches<DeepSeek<kNoCjk>, kNoCjk>::next(p, end);
    return Matches<DeepSeek<kNumber | kCjk>, kNumber | kCjk>::next(p, end);
  }
};

// Runs of 1 to kMost characters of kKinds, and the text between them.
template <int kKinds, int64_t kMost>
struct Runs {
  static const char* next(const char* p, const char* end) {
    const char* q = short_run<kKinds>(p, end, kMost);
    if (q != p) return q;
    for (;;) {
      q = skip_ascii(q, end, (kKinds & kNumber) != 0 ? ascii_but_digits : ascii);
      const Character c = character(q, end);
      if (!c.kind || (c.kind & kKinds)) return q;
      q += c.length;
    }
  }
};

// After a block in which no piece ends, this many pieces are scanned without trying another block.
constexpr int kPiecesWithoutBlock = 3;

template <class Pattern>
size_t scan(const char* p, const char* end, std::span<const char*> ends) {
  size_t count = 0;
  int without_block = 0;
  while (p != end && count < ends.size()) {
    if constexpr (requires { Pattern::kAscii; }) {
      if (without_block == 0 && end - p >= 64 && ends.size() - count >= 64) {
        uint64_t pieces = ascii_pieces<Pattern::kAscii>(p);
        const char* const block = p;
        for (; pieces != 0; pieces &= pieces - 1) ends[count++] = p = block + std::countr_zero(pieces);
        if (p != block) continue;
        without_block = kPiecesWithoutBlock;
      }
      without_block -= without_block > 0 ? 1 : 0;
    }
    ends[count++] = p = Pattern::next(p, end);
  }
  return count;
}

// Later releases of tiktoken write the same pattern with possessive quantifiers.
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
  if (regex == kDeepSeekPattern) return scan<Matches<DeepSeek<0>, 0>>;
  if (regex == kNumberPattern) return scan<Runs<kNumber, 1>>;
  if (regex == kNumberTripletPattern) return scan<Runs<kNumber, 3>>;
  if (regex == kNumberRunPattern) return scan<Runs<kNumber, INT64_MAX>>;
  if (regex == kDigitPattern) return scan<Runs<kNumber | kNewDigit, 1>>;
  if (regex == kDigitRunPattern) return scan<Runs<kNumber | kNewDigit, INT64_MAX>>;
  return nullptr;
}

Scanner scanner_for(std::string_view first, std::string_view second, std::string_view third) {
  const bool is_deepseek = first == kNumberTripletPattern && second == kDeepSeekCjkPattern && third == kDeepSeekPattern;
  return is_deepseek ? scan<DeepSeekChain> : nullptr;
}

}  // namespace witan
