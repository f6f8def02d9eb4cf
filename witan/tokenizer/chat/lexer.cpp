#include "witan/tokenizer/chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/value.h"

namespace witan::jinja {
namespace {

constexpr int kMostNesting = 64;  // brackets and blocks that are open at once

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Converts line ends to \n.
std::string normalized(std::string_view source, bool keep_trailing_newline) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (!keep_trailing_newline && text.ends_with('\n')) text.pop_back();
  return text;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 63));
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  }
}

// A character beyond ASCII as xe9, u4e00 or U0001f600.
std::string written_as_escape(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(character[i])); };
  uint32_t c = byte(0) & (0xFFU >> (character.size() + 1));
  for (size_t i = 1; i < character.size(); ++i) c = c << 6 | (byte(i) & 63);
  return c < 0x100 ? fmt::format("x{:02x}", c) : c < 0x10000 ? fmt::format("u{:04x}", c) : fmt::format("U{:08x}", c);
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& name, const Whitespace& whitespace)
      : source_(std::move(source)), name_(name), whitespace_(whitespace) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw DataError(cat(name_, ":", line_, ": ", why)); }

  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
  }

  // Reads the text up to the next tag, and the tag.
  void read_text() {
    size_t tag = at_;
    while ((tag = source_.find('{', tag)) != std::string::npos) {
      const char next = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') break;
      ++tag;
    }
    if (tag == std::string::npos) {
      add(Token::Kind::text, std::string(rest()));
      advance(rest().size());
      return;
    }
    const char opens = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string text = source_.substr(at_, tag - at_);
    if (sign == '-')
      while (!text.empty() && is_space(text.back())) text.pop_back();
    else if (sign != '+' && opens != '{' && whitespace_.lstrip_blocks)
      strip_line(text);
    if (!text.empty()) add(Token::Kind::text, std::move(text));
    advance(tag - at_);
    const bool signed_tag = sign == '-' || (sign == '+' && opens != '{');
    advance(2 + (signed_tag ? 1 : 0));
    if (opens == '#')
      skip_comment();
    else if (const size_t raw = opens == '%' ? tag_size(at_, "raw") : 0)
      read_raw(raw);
    else
      read_tag(opens == '{');
  }

  // lstrip_blocks: removes white space before a tag at the start of its line.
  void strip_line(std::string& text) const {
    const size_t line = text.rfind('\n') + 1;  // npos + 1 == 0
    if (line == 0 && !line_starting_) return;
    if (std::all_of(text.begin() + static_cast<ptrdiff_t>(line), text.end(), is_space)) text.resize(line);
  }

  void skip_space() {
    size_t size = 0;
    while (size < rest().size() && is_space(rest()[size])) ++size;
    advance(size);
  }

  // Skips what follows a tag: all white space, or with trim_blocks one line end.
  void end_tag(bool strip, bool trim) {
    line_starting_ = false;
    if (strip) {
      const size_t before = at_;
      skip_space();
      line_starting_ = at_ > before && source_[at_ - 1] == '\n';
    } else if (trim && whitespace_.trim_blocks && rest().starts_with('\n')) {
      advance(1);
      line_starting_ = true;
    }
  }

  void skip_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment is not closed: there is no #}");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance(end - at_ + 2);
    end_tag(sign == '-', sign != '+');
  }

  // If the rest of the tag consists of this word only, returns its size including the end of the tag, else 0.
  size_t tag_size(size_t from, std::string_view word) const {
    const auto skip = [&](size_t at) {
      while (at < source_.size() && is_space(source_[at])) ++at;
      return at;
    };
    size_t at = skip(from);
    if (source_.compare(at, word.size(), word) != 0) return 0;
    at = skip(at + word.size());
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    return source_.compare(at, 2, "%}") == 0 ? at + 2 - from : 0;
  }

  // Reads everything up to {% endraw %} as text. `size` is what remains of the opening tag.
  void read_raw(size_t size) {
    const bool strip = source_[at_ + size - 3] == '-';
    advance(size);
    end_tag(strip, false);
    for (size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const size_t begin = tag + (sign == '-' || sign == '+' ? 3 : 2), end = tag_size(begin, "endraw");
      if (end == 0) continue;
      std::string text = source_.substr(at_, tag - at_);
      if (sign == '-')
        while (!text.empty() && is_space(text.back())) text.pop_back();
      else if (sign != '+' && whitespace_.lstrip_blocks)
        strip_line(text);
      if (!text.empty()) add(Token::Kind::text, std::move(text));
      const char last = source_[begin + end - 3];
      advance(begin + end - at_);
      return end_tag(last == '-', last != '+');
    }
    fail("{% raw %} is not closed: there is no {% endraw %}");
  }

  void read_tag(bool output) {
    add(output ? Token::Kind::output_begin : Token::Kind::block_begin, "");
    const char* end = output ? "}}" : "%}";
    std::string open;  // brackets
    for (;;) {
      skip_space();
      if (at_ >= source_.size()) fail(cat("a tag is not closed: there is no ", end));
      const std::string_view here = rest();
      const bool signed_end = (here[0] == '-' || (here[0] == '+' && !output)) && here.substr(1).starts_with(end);
      if (open.empty() && (signed_end || here.starts_with(end))) {
        const char sign = signed_end ? here[0] : '\0';
        add(output ? Token::Kind::output_end : Token::Kind::block_end, "");
        advance(signed_end ? 3 : 2);
        return end_tag(sign == '-', !output && sign != '+');
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const std::string_view here = rest();
    if (is_letter(here[0])) return read_name();
    if (is_digit(here[0])) return read_number();
    if (here[0] == '"' || here[0] == '\'') return read_string();
    static constexpr std::array<std::string_view, 28> symbols = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*",
                                                                 "%",  "~",  "[",  "]",  "(",  ")",  "{", "}", ">", "<",
                                                                 "=",  ".",  ":",  "|",  ",",  ";",  "@", "&"};
    for (const std::string_view symbol : symbols)
      if (here.starts_with(symbol)) {
        track(symbol, open);
        add(Token::Kind::symbol, std::string(symbol));
        return advance(symbol.size());
      }
    fail(cat("the character ", clipped(here.substr(0, 1)), " does not belong in a tag"));
  }

  void track(std::string_view symbol, std::string& open) const {
    constexpr std::string_view kOpens = "([{", kCloses = ")]}";
    if (kOpens.find(symbol) != kOpens.npos) open += symbol;
    const size_t closes = kCloses.find(symbol);
    if (closes == kCloses.npos) return;
    if (open.empty() || open.back() != kOpens[closes]) fail(cat("there is nothing that ", symbol, " closes"));
    open.pop_back();
  }

  void read_name() {
    size_t size = 0;
    while (size < rest().size() && (is_letter(rest()[size]) || is_digit(rest()[size]))) ++size;
    add(Token::Kind::name, std::string(rest().substr(0, size)));
    advance(size);
  }

  void read_number() {
    if (read_other_base()) return;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    const auto digits = [&](size_t from) {
      while (from < rest().size() && (is_digit(rest()[from]) || (rest()[from] == '_' && from > 0))) ++from;
      return from;
    };
    const auto digit_at = [&](size_t i) { return i < rest().size() && is_digit(rest()[i]); };
    size_t size = digits(0);
    bool real = false;
    if (!after_dot && size < rest().size() && rest()[size] == '.' && digit_at(size + 1)) {
      size = digits(size + 1);
      real = true;
    }
    if (!after_dot && size < rest().size() && (rest()[size] == 'e' || rest()[size] == 'E')) {
      const size_t sign = size + 1 < rest().size() && (rest()[size + 1] == '+' || rest()[size + 1] == '-') ? 1 : 0;
      if (digit_at(size + 1 + sign)) {
        size = digits(size + 1 + sign);
        real = true;
      }
    }
    std::string text(rest().substr(0, size));
    std::erase(text, '_');
    add(real ? Token::Kind::real : Token::Kind::integer, std::move(text));
    advance(size);
  }

  // 0x1f, 0o17 and 0b11.
  bool read_other_base() {
    const std::string_view here = rest();
    const char kind = here.size() > 2 && here[0] == '0' ? static_cast<char>(here[1] | 32) : '\0';
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (base == 0) return false;
    size_t size = 2;
    while (size < here.size() && (is_letter(here[size]) || is_digit(here[size]))) ++size;
    std::string digits(here.substr(2, size - 2));
    std::erase(digits, '_');
    uint64_t value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size())
      fail(cat(clipped(here.substr(0, size)), " is not an integer of 64 bits"));
    add(Token::Kind::integer, std::to_string(value));
    advance(size);
    return true;
  }

  void read_string() {
    const char quote = rest()[0];
    size_t end = 1;
    while (end < rest().size() && rest()[end] != quote) end += rest()[end] == '\\' ? 2 : 1;
    if (end >= rest().size()) fail("a string is not closed");
    add(Token::Kind::string, unescaped(rest().substr(1, end - 1)));
    advance(end + 1);
  }

  // Resolves the escapes of Python's strings and keeps the backslash of others. Jinja first writes characters beyond
  // ASCII as escapes, so that a backslash before one leaves the text of the escape.
  std::string unescaped(std::string_view text) const {
    constexpr std::string_view kNames = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"", kOctal = "01234567";
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 >= text.size()) {
        out += text[i];
        continue;
      }
      const char kind = text[++i];
      const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
      if (digits > 0) {
        append_utf8(out, hex(text, i + 1, digits));
        i += digits;
      } else if (kOctal.find(kind) != kOctal.npos) {
        uint32_t value = 0;
        const size_t end = std::min(i + 3, text.size());
        for (; i < end && kOctal.find(text[i]) != kOctal.npos; ++i)
          value = value * 8 + static_cast<uint32_t>(text[i] - '0');
        append_utf8(out, value);
        --i;
      } else if (const size_t known = kNames.find(kind); known != kNames.npos) {
        out += kValues[known];
      } else if (kind == 'N') {
        fail("\\N{…} in a string is not supported: write the character itself");
      } else if (static_cast<unsigned char>(kind) >= 0x80) {
        const std::string_view character = text.substr(i, byte_of(text.substr(i), 1));
        out += '\\';
        out += written_as_escape(character);
        i += character.size() - 1;
      } else if (kind != '\n') {
        (out += '\\') += kind;
      }
    }
    return out;
  }

  uint32_t hex(std::string_view text, size_t from, size_t digits) const {
    uint32_t value = 0;
    if (from + digits > text.size()) fail("an escape in a string is cut short");
    for (const char c : text.substr(from, digits)) {
      const std::string_view all = "0123456789abcdef";
      const size_t digit = all.find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
      if (digit == all.npos) fail("an escape in a string has a digit that is not hexadecimal");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) fail("an escape in a string is not a valid character");
    return value;
  }

  const std::string source_;
  const std::string& name_;
  const Whitespace whitespace_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name, const Whitespace& whitespace) {
  const size_t invalid = find_invalid_utf8(source);
  require<DataError>(invalid == source.npos, name, ": byte ", invalid, " of the template is not UTF-8");
  return Lexer(normalized(source, whitespace.keep_trailing_newline), name, whitespace).run();
}

TokenCursor::Nesting::Nesting(TokenCursor& cursor) : cursor_(cursor) {
  if (++cursor_.nesting_ > kMostNesting) cursor_.fail(cat("the template is nested deeper than ", kMostNesting));
}

void TokenCursor::fail(const std::string& why) const {
  throw DataError(cat(name_, ":", now().line, ": ", why));
}

const Token& TokenCursor::after() const {
  return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
}

Token TokenCursor::take() {
  Token token = now();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

std::string TokenCursor::shown() const {
  switch (now().kind) {
    case Token::Kind::output_end:
      return "}}";
    case Token::Kind::block_end:
      return "%}";
    case Token::Kind::end:
      return "the end of the template";
    default:
      return clipped(now().text);
  }
}

bool TokenCursor::skip(Token::Kind kind, std::string_view text) {
  const bool found = is(kind, text);
  if (found) take();
  return found;
}

void TokenCursor::expect_symbol(std::string_view text) {
  if (!skip_symbol(text)) fail(cat("expected ", text, " and found ", shown()));
}

void TokenCursor::expect_end(Token::Kind kind) {
  if (now().kind != kind) fail(cat("expected ", kind == Token::Kind::block_end ? "%}" : "}}", " and found ", shown()));
  take();
}

std::string TokenCursor::expect_name(const char* what) {
  if (now().kind != Token::Kind::name) fail(cat("expected ", what, " and found ", shown()));
  return take().text;
}

}  // namespace witan::jinja
