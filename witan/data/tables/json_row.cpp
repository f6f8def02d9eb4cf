#include "witan/data/tables/json_row.h"

#include <array>
#include <charconv>
#include <cmath>

namespace witan::tables {
namespace {

bool plain(char letter) {
  return static_cast<unsigned char>(letter) >= 0x20 && letter != '"' && letter != '\\';
}

}  // namespace

void JsonRow::clear() {
  line_.clear();
  first_ = true;
  too_long_ = false;
}

bool JsonRow::value() {
  too_long_ |= line_.size() > most_bytes_;
  if (too_long_) return false;
  if (!first_) line_ += ',';
  first_ = false;
  return true;
}

void JsonRow::open(char bracket) {
  if (!value()) return;
  line_ += bracket;
  first_ = true;
}

void JsonRow::close(char bracket) {
  if (too_long_) return;
  line_ += bracket;
  first_ = false;
}

void JsonRow::key(std::string_view name) {
  if (!value()) return;
  quoted(name);
  if (too_long_) return;
  line_ += ':';
  first_ = true;
}

void JsonRow::text(std::string_view letters) {
  if (value()) quoted(letters);
}

void JsonRow::quoted(std::string_view letters) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (letters.size() > most_bytes_) {
    too_long_ = true;
    return;
  }
  line_ += '"';
  for (size_t at = 0; at < letters.size();) {
    size_t end = at;
    while (end < letters.size() && plain(letters[end])) ++end;
    line_.append(letters.substr(at, end - at));
    if (end == letters.size()) break;
    const char special = letters[end];
    line_ += '\\';
    if (special == '"' || special == '\\')
      line_ += special;
    else if (special == '\n')
      line_ += 'n';
    else
      line_.append("u00").append(1, kDigits[static_cast<size_t>(special) >> 4]).append(1, kDigits[special & 15]);
    at = end + 1;
  }
  line_ += '"';
}

void JsonRow::word(std::string_view letters) {
  too_long_ |= letters.size() > most_bytes_;
  if (value()) line_ += letters;
}

void JsonRow::integer(int64_t number) {
  std::array<char, 24> digits;
  word({digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr});
}

void JsonRow::natural(uint64_t number) {
  std::array<char, 24> digits;
  word({digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr});
}

void JsonRow::real(double number) {
  if (!std::isfinite(number)) return null();
  std::array<char, 32> digits;
  std::string_view text(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
  word(text);
  if (!too_long_ && text.find_first_of(".e") == text.npos) line_ += ".0";  // else it is an integer to a template
}

}  // namespace witan::tables
