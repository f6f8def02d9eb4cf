#include "witan/tokenizer/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/ascii_block.h"
#include "witan/tokenizer/text/bert.h"
#include "witan/tokenizer/text/regex_splitter.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

constexpr size_t kLongestReplacement = 512;  // Unicode needs at most 33; bounds how much a text can grow
constexpr size_t kMostRules = 32;            // SentencePiece tries at most this many prefixes

// A unit of Darts: in a leaf a value of 31 bits; else a label, whether a leaf follows, and the offset of the children.
uint32_t label_of(uint32_t unit) {
  return unit & (uint32_t{1} << 31 | 0xFF);
}
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  uint32_t trie = 0;
  require<CorruptionError>(bytes.size() > sizeof trie, "the compiled character map has ", bytes.size(),
                           " bytes, too few for its header: download the tokenizer file again");
  std::memcpy(&trie, bytes.data(), sizeof trie);
  require<CorruptionError>(trie > 0 && trie % sizeof(uint32_t) == 0 && trie < bytes.size() - sizeof trie,
                           "the compiled character map declares a trie of ", trie, " bytes, but has only ",
                           bytes.size() - sizeof trie, ": download the tokenizer file again");
  units_.resize(trie / sizeof(uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof trie, trie);
  replacements_ = bytes.substr(sizeof trie + trie);
}

std::optional<Charsmap::Rule> Charsmap::find(std::string_view text, bool first) const {
  std::optional<Rule> found;
  size_t rules = 0;
  uint32_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size() && rules < kMostRules; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (node >= units_.size()) break;
    if (!has_leaf(unit)) continue;
    const uint32_t place = units_[node] & ~(uint32_t{1} << 31);
    if (place >= replacements_.size()) continue;
    const auto here = std::string_view(replacements_).substr(place, kLongestReplacement + 1);
    const size_t end = std::min(here.find('\0'), here.size());
    if (end > kLongestReplacement) continue;
    found = Rule{i + 1, here.substr(0, end)};
    ++rules;
    if (first) break;
  }
  return found;
}

std::optional<Charsmap::Rule> Charsmap::longest(std::string_view text) const {
  return find(text, false);
}
std::optional<Charsmap::Rule> Charsmap::shortest(std::string_view text) const {
  return find(text, true);
}

std::string Charsmap::normalize_graphemes(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t end = at + character_length(text.substr(at));
    utf8proc_int32_t state = 0;
    for (int32_t last = first_character(text.substr(at)); end < text.size();) {
      const int32_t next = first_character(text.substr(end));
      if (utf8proc_grapheme_break_stateful(last, next, &state)) break;
      end += character_length(text.substr(end));
      last = next;
    }
    const std::string_view grapheme = text.substr(at, end - at);
    at = end;
    if (const auto rule = grapheme.size() < 6 ? shortest(grapheme) : std::nullopt) {
      out += rule->replacement;
      continue;
    }
    for (size_t i = 0; i < grapheme.size();) {
      const std::string_view character = grapheme.substr(i, character_length(grapheme.substr(i)));
      const auto rule = shortest(character);
      out += rule ? rule->replacement : character;
      i += character.size();
    }
  }
  return out;
}

namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

int combining_class(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

// The canonical ordering algorithm; utf8proc's own takes quadratic time on a long run of marks.
void order_marks(CodePoints& text) {
  for (auto run = text.begin(); run != text.end();) {
    const auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
    run = std::find_if_not(run, text.end(), is_starter);
    const auto end = std::find_if(run, text.end(), is_starter);
    std::stable_sort(run, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

using Form = NormalizerStep::Kind;

// Bounds for hostile files, in which each of many steps might double the text. Compatibility decomposition alone can
// turn one byte into 11.
constexpr size_t kLongestContent = 64;
constexpr size_t kMostGrowth = 16;
constexpr size_t kGrowthOfShortTexts = 64 << 10;

bool is_compatible(Form form) {
  return form == Form::nfkc || form == Form::nfkd;
}
bool composes(Form form) {
  return form == Form::nfc || form == Form::nfkc;
}

// Appends the decomposed characters in canonical order, composed if `form` requires it, and clears them.
void put_normalized(CodePoints& decomposed, Form form, std::string& out) {
  order_marks(decomposed);
  auto count = static_cast<utf8proc_ssize_t>(decomposed.size());
  constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  if (composes(form)) count = utf8proc_normalize_utf32(decomposed.data(), count, options);
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_character(out, decomposed[static_cast<size_t>(i)]);
  decomposed.clear();
}

// A character unknown to the reference is neither decomposed, reordered nor composed: it stays as it is, and the text
// before and after it is normalised separately. Unicode guarantees that later versions normalise known characters in
// the same way. Text that is not valid UTF-8 is returned unchanged.
std::string to_form(std::string_view text, Form form) {
  std::string out;
  out.reserve(text.size());
  CodePoints decomposed;
  const auto decompose =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (is_compatible(form) ? UTF8PROC_COMPAT : 0));
  const auto* p = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(p, left, &c);
    if (bytes <= 0) return std::string(text);
    p += bytes;
    left -= bytes;
    // utf8proc (2.8) mistakes U+11A7 for a trailing consonant of Hangul (they start at U+11A8) and drops it.
    if (c >= 0x80 && (!is_in_unicode_9(c) || c == 0x11A7)) {
      put_normalized(decomposed, form, out);
      append_character(out, c);
      continue;
    }
    std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18
    int boundary = 0;
    const auto count = utf8proc_decompose_char(c, parts.data(), parts.size(), decompose, &boundary);
    decomposed.insert(decomposed.end(), parts.begin(), parts.begin() + count);
  }
  put_normalized(decomposed, form, out);
  return out;
}

// Lower case of characters that are newer than the oldest supported utf8proc (Unicode 14), as ranges: the first and the
// last upper-case letter, and the lower-case letter of the first.
constexpr std::array<std::array<int32_t, 3>, 9> kLowerCaseSinceUnicode15 = {{{0xA7CB, 0xA7CB, 0x0264},
                                                                             {0xA7CC, 0xA7CC, 0xA7CD},
                                                                             {0xA7CE, 0xA7CE, 0xA7CF},
                                                                             {0xA7D2, 0xA7D2, 0xA7D3},
                                                                             {0xA7D4, 0xA7D4, 0xA7D5},
                                                                             {0xA7DA, 0xA7DA, 0xA7DB},
                                                                             {0xA7DC, 0xA7DC, 0x019B},
                                                                             {0x10D50, 0x10D65, 0x10D70},
                                                                             {0x16EA0, 0x16EB8, 0x16EBB}}};

int32_t lower_case(int32_t c) {
  for (const auto& [first, last, lower] : kLowerCaseSinceUnicode15)
    if (c >= first && c <= last) return lower + (c - first);
  return utf8proc_tolower(c);
}

std::string to_lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const std::string_view here = text.substr(at, character_length(text.substr(at)));
    const int32_t c = first_character(here);
    at += here.size();
    if (here.size() == 1 && c >= 0x80)
      out += here;  // not valid UTF-8
    else if (c == 0x130)
      out += "i\u0307";
    else
      append_character(out, lower_case(c));
  }
  return out;
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const size_t length = character_length(text);
    if (!is_white_space(first_character(text)) || (length == 1 && (text[0] & 0x80))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
    const std::string_view last = text.substr(begin);
    if (character_length(last) != last.size() || (last.size() == 1 && (last[0] & 0x80))) break;
    if (!is_white_space(first_character(last))) break;
    text = text.substr(0, begin);
  }
  return text;
}

// For each character its combining class, or kMayChange if form C may decompose it or compose it with the character
// before it.
constexpr int32_t kCharactersUnderNfc = 0x30000;  // form C changes no character of Unicode 9 from here on
constexpr uint8_t kMayChange = 255;               // not a combining class of any character

std::vector<uint8_t> make_orders_under_nfc() {
  std::vector<uint8_t> orders(kCharactersUnderNfc);
  std::array<utf8proc_int32_t, 32> parts{};
  for (int32_t c = 0x80; c < kCharactersUnderNfc; ++c) {
    if (!is_in_unicode_9(c)) continue;
    int boundary = 0;
    const auto count = utf8proc_decompose_char(c, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
    if (orders[c] == 0) orders[c] = static_cast<uint8_t>(combining_class(c));
    if (count == 1 && parts[0] == c) continue;
    for (utf8proc_ssize_t i = 1; i < count; ++i) orders[parts[i]] = kMayChange;
    const utf8proc_ssize_t composed = utf8proc_normalize_utf32(
        parts.data(), count, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (composed != 1 || parts[0] != c) orders[c] = kMayChange;
  }
  orders[0x11A7] = kMayChange;  // see to_form
  return orders;
}

uint8_t order_under_nfc(int32_t c) {
  static const std::vector<uint8_t> orders = make_orders_under_nfc();
  return c < kCharactersUnderNfc ? orders[static_cast<size_t>(c)] : uint8_t{0};
}

}  // namespace

bool may_change_under_nfc(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  uint8_t previous = 0;
  for (;;) {
    const char* const characters = p;
    p = skip_ascii(p, end, ascii);
    if (p == end) return false;
    if (p != characters) previous = 0;
    utf8proc_int32_t c = 0;
    const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(p), end - p, &c);
    if (bytes <= 0) return true;
    const uint8_t order = c < 0x300 ? uint8_t{0} : order_under_nfc(c);
    if (order == kMayChange || (order > 0 && order < previous)) return true;
    previous = order;
    p += bytes;
  }
}

std::string to_nfc(std::string_view text) {
  return may_change_under_nfc(text) ? to_form(text, Form::nfc) : std::string(text);
}

struct Normalizer::Step {
  explicit Step(NormalizerStep given) : step(std::move(given)) {
    require<DataError>(step.kind == Form::precompiled || step.content.size() <= kLongestContent,
                       "the normalizer inserts a text of ", step.content.size(), " bytes, \"", clipped(step.content),
                       "\"; the limit is ", kLongestContent, ": shorten it in the tokenizer.json");
    if (step.kind == Form::replace && step.regex) regex.emplace(step.pattern);
    if (step.kind == Form::precompiled) charsmap.emplace(step.content);
  }

  std::string apply(std::string_view text) const {
    switch (step.kind) {
      case Form::nfc:
        return to_nfc(text);
      case Form::nfd:
      case Form::nfkc:
      case Form::nfkd:
        return to_form(text, step.kind);
      case Form::lowercase:
        return to_lower_case(text);
      case Form::strip:
        return std::string(stripped(text, step.left, step.right));
      case Form::prepend:
        return text.empty() ? std::string() : step.content + std::string(text);
      case Form::replace:
        return regex ? replaced(text) : replace_all(text, step.pattern, step.content);
      case Form::precompiled:
        return charsmap->normalize_graphemes(text);
      case Form::strip_accents:
        return strip_marks(text);
      case Form::bert:
        return as_bert(text);
    }
    return std::string(text);
  }

  std::string as_bert(std::string_view given) const {
    std::string text(given);
    if (step.clean) text = clean_text(text);
    if (step.chinese) text = pad_chinese_characters(text);
    if (step.accents) text = strip_nonspacing_marks(to_form(text, Form::nfd));
    return step.lower ? to_lower_case(text) : text;
  }

  // How many bytes of `out` = apply(text) come from the first `beginning` bytes of the text.
  size_t beginning_of(std::string_view text, std::string_view out, size_t beginning) const {
    if (beginning == 0 || out.empty()) return 0;
    if (step.kind == Form::prepend) return step.content.size() + beginning;
    if (step.kind == Form::strip) {
      const auto removed = static_cast<size_t>(stripped(text, step.left, false).data() - text.data());
      return beginning - std::min(beginning, removed);
    }
    if (step.kind == Form::replace) return beginning_of_replaced(text, beginning);
    // If the first character vanishes, the next one takes its place, but only in a character map.
    const std::string first = apply(text.substr(0, beginning));
    size_t characters = step.kind == Form::precompiled && first.empty() ? 1 : 0, bytes = 0;
    for (size_t at = 0; at < first.size(); at += character_length(std::string_view(first).substr(at))) ++characters;
    for (; characters > 0 && bytes < out.size(); --characters) bytes += character_length(out.substr(bytes));
    return bytes;
  }

  // A replacement counts as being where the last byte of its match was.
  size_t beginning_of_replaced(std::string_view text, size_t beginning) const {
    if (!regex) text = text.substr(0, beginning + step.pattern.size());  // no relevant match extends beyond this
    size_t at = 0, bytes = 0;
    bool ended = false;
    each_match(text, [&](std::string_view part, bool matches) {
      const size_t end = at + part.size();
      if (!ended && matches) {
        ended = end > beginning;
        if (!ended) bytes += step.content.size();
      } else if (!ended) {
        bytes += std::min(end, beginning) - std::min(at, beginning);
        ended = end > beginning;
      }
      at = end;
    });
    return bytes;
  }

  template <class Sink>
  void each_match(std::string_view text, Sink sink) const {
    if (regex) return regex->each(text, sink);
    size_t done = 0;
    for (size_t at = text.find(step.pattern); at != std::string_view::npos; at = text.find(step.pattern, done)) {
      if (at > done) sink(text.substr(done, at - done), false);
      sink(text.substr(at, step.pattern.size()), true);
      done = at + step.pattern.size();
    }
    if (done < text.size()) sink(text.substr(done), false);
  }

  std::string replaced(std::string_view text) const {
    std::string out;
    each_match(text, [&](std::string_view piece, bool matches) { out += matches ? step.content : piece; });
    return out;
  }

  NormalizerStep step;
  std::optional<RegexSplitter> regex;
  std::optional<Charsmap> charsmap;
};

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  for (const NormalizerStep& step : steps) steps_.emplace_back(step);
}
Normalizer::~Normalizer() = default;
Normalizer::Normalizer(Normalizer&&) noexcept = default;

bool Normalizer::may_change(std::string_view text) const {
  if (steps_.empty()) return false;
  return steps_.size() > 1 || steps_[0].step.kind != Form::nfc || may_change_under_nfc(text);
}

std::string Normalizer::operator()(std::string_view text) const {
  size_t beginning = 0;
  return (*this)(text, beginning);
}

std::string Normalizer::operator()(std::string_view text, size_t& beginning) const {
  std::string out(text);
  for (const Step& step : steps_) {
    std::string changed = step.apply(out);
    beginning = step.beginning_of(out, changed, beginning);
    out = std::move(changed);
    require<DataError>(out.size() <= kMostGrowth * text.size() + kGrowthOfShortTexts, "the normalizer turns a text of ",
                       text.size(), " bytes into ", out.size(), " bytes, more than ", kMostGrowth,
                       " times as many: remove steps that lengthen the text from the tokenizer.json");
  }
  return out;
}

}  // namespace witan
