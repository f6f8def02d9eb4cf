#include "witan/base/config/toml_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

// Bytes of the code point that begins with this byte, in valid UTF-8.
size_t bytes_of_code_point(char first) {
  return is_ascii(first) ? 1 : static_cast<size_t>(std::countl_one(static_cast<unsigned char>(first)));
}

uint32_t code_point(std::string_view utf8) {
  uint32_t value = static_cast<unsigned char>(utf8[0]) & (0xFFu >> (utf8.size() + 1));
  for (const char c : utf8.substr(1)) value = value << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  return value;
}

class Rewriter {
 public:
  Rewriter(std::string_view toml, std::string_view source) : toml_(toml), source_(source) {}

  std::string rewritten() {
    if (const size_t invalid = find_invalid_utf8(toml_); invalid != std::string_view::npos) {
      line_ += static_cast<int>(std::count(toml_.begin(), toml_.begin() + static_cast<std::ptrdiff_t>(invalid), '\n'));
      refuse("the text is not UTF-8");
    }
    if (toml_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark
    while (at_ < toml_.size()) {
      if (in_comment_) {
        comment();
      } else if (quote_.empty()) {
        outside();
      } else {
        inside_string();
      }
    }
    return std::move(out_);
  }

 private:
  static constexpr int kMostDots = 64;

  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError(cat(source_, ":", line_, ": not valid TOML: ", why));
  }

  // The next `bytes` have been read, and are replaced by this.
  void replace(size_t bytes, std::string_view by) {
    for (const char c : toml_.substr(at_, bytes)) line_ += c == '\n';
    out_ += by;
    at_ += bytes;
  }
  void copy(size_t bytes) { replace(bytes, toml_.substr(at_, bytes)); }

  void comment() {
    in_comment_ = toml_[at_] != '\n';
    if (is_ascii(toml_[at_])) return copy(1);
    replace(bytes_of_code_point(toml_[at_]), "?");
  }

  void outside() {
    const char c = toml_[at_];
    if (!is_ascii(c))
      refuse(cat(toml_.substr(at_, bytes_of_code_point(c)), " stands outside of quotes and of comments"));
    if (c == '"' || c == '\'') return begin_string(c);
    in_comment_ = c == '#';
    if (c == '\n' || c == '=' || c == ',') dots_ = 0;
    if (c == '.')
      require<ConfigError>(++dots_ <= kMostDots, source_, ":", line_, ": a key of more than ", kMostDots, " parts");
    copy(1);
  }

  void begin_string(char mark) {
    quote_ = std::string(3, mark);
    if (!toml_.substr(at_).starts_with(quote_)) quote_ = std::string(1, mark);
    replace(quote_.size(), quote_.size() == 3 ? "\"\"\"" : "\"");
  }

  void inside_string() {
    const char c = toml_[at_];
    const bool literal = quote_[0] == '\'', multi_line = quote_.size() == 3;
    if (c == quote_[0]) return multi_line ? quotes(c) : end_string(1, "\"");
    if (c == '\n' && !multi_line) quote_.clear();  // an error, for the parser to say
    if (!is_ascii(c)) {
      const size_t bytes = bytes_of_code_point(c);
      replace(bytes, fmt::format("\\U{:08X}", code_point(toml_.substr(at_, bytes))));
    } else if (literal && (c == '\\' || c == '"')) {
      replace(1, c == '"' ? "\\\"" : "\\\\");
    } else if (c == '\\' && at_ + 1 < toml_.size()) {
      if (!is_ascii(toml_[at_ + 1])) refuse("unknown escape sequence: a backslash before a letter beyond ASCII");
      copy(2);
    } else {
      copy(1);
    }
  }

  // In a multi-line string, one or two quotes are text. Three end the string, and so do four or five, of which the
  // first are text.
  void quotes(char mark) {
    constexpr size_t kMost = 5;
    const std::string_view rest = toml_.substr(at_);
    const size_t count = std::min({rest.find_first_not_of(mark), rest.size(), kMost});
    const std::string_view text = mark == '"' ? "\\\"" : "'";
    std::string by;
    for (size_t i = 0; i < (count < 3 ? count : count - 3); ++i) by += text;
    if (count < 3) return replace(count, by);
    end_string(count, by + "\"\"\"");
  }

  void end_string(size_t bytes, std::string_view by) {
    replace(bytes, by);
    quote_.clear();
  }

  const std::string_view toml_, source_;
  size_t at_ = 0;
  int line_ = 1;
  int dots_ = 0;       // of the key being read
  std::string quote_;  // of the string being read; empty: none
  bool in_comment_ = false;
  std::string out_;
};

}  // namespace

std::string ascii_toml(std::string_view toml, std::string_view source) {
  return Rewriter(toml, source).rewritten();
}

}  // namespace witan
