#include "witan/tokenizer/files/serde_number.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace witan {
namespace {

constexpr int kMostTens = 308;         // 1e308 is the greatest power of ten in float64
constexpr int64_t kFarExponent = 1e9;  // larger exponents make no difference

double power_of_ten(int exponent) {
  static const std::array<double, kMostTens + 1> powers = [] {
    std::array<double, kMostTens + 1> all{};
    for (int i = 0; i <= kMostTens; ++i) {
      const std::string text = "1e" + std::to_string(i);
      std::from_chars(text.data(), text.data() + text.size(), all[static_cast<size_t>(i)]);
    }
    return all;
  }();
  return powers[static_cast<size_t>(exponent)];
}

std::optional<double> scaled(uint64_t digits, int64_t exponent) {
  auto value = static_cast<double>(digits);
  for (; exponent < -kMostTens && value != 0; exponent += kMostTens) value /= power_of_ten(kMostTens);
  if (value == 0) return value;
  if (exponent > kMostTens) return std::nullopt;
  const double power = power_of_ten(static_cast<int>(std::abs(exponent)));
  value = exponent >= 0 ? value * power : value / power;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Collects the leading digits of a number that fit into 64 bits, and counts the rest.
class Digits {
 public:
  // Consumes the digits at the beginning of `text`, before or after the decimal point. Returns false if there are none.
  bool take(std::string_view& text, bool after_point) {
    if (text.empty() || !is_digit(text[0])) return false;
    for (; !text.empty() && is_digit(text[0]); text.remove_prefix(1)) {
      const auto digit = static_cast<uint64_t>(text[0] - '0');
      full_ = full_ || value_ > (std::numeric_limits<uint64_t>::max() - digit) / 10;
      if (full_ && after_point) continue;
      if (!full_) value_ = 10 * value_ + digit;
      exponent_ += after_point ? -1 : full_;
    }
    return true;
  }
  uint64_t value() const { return value_; }
  int64_t exponent() const { return exponent_; }

 private:
  uint64_t value_ = 0;
  int64_t exponent_ = 0;
  bool full_ = false;
};

std::optional<int64_t> take_exponent(std::string_view& text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty()) return std::nullopt;
  int64_t exponent = 0;
  for (; !text.empty() && is_digit(text[0]); text.remove_prefix(1))
    exponent = std::min(10 * exponent + (text[0] - '0'), kFarExponent);
  return negative ? -exponent : exponent;
}

std::string shortest(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), end};
}

// `value` and the `count` numbers on each side of it, nearest first.
std::vector<double> neighbours(double value, int count) {
  std::vector<double> all = {value};
  double above = value, below = value;
  for (int i = 0; i < count; ++i) {
    all.push_back(above = std::nextafter(above, std::numeric_limits<double>::infinity()));
    all.push_back(below = std::nextafter(below, -std::numeric_limits<double>::infinity()));
  }
  return all;
}

}  // namespace

std::optional<double> read_serde_number(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  Digits digits;
  if (!digits.take(text, false)) return std::nullopt;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!digits.take(text, true)) return std::nullopt;
  }
  int64_t exponent = 0;
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    const auto given = take_exponent(text);
    if (!given) return std::nullopt;
    exponent = *given;
  }
  if (!text.empty()) return std::nullopt;
  const auto value = scaled(digits.value(), digits.exponent() + exponent);
  return value && negative ? -*value : value;
}

std::string write_serde_number(double value) {
  const std::string plain = shortest(value);
  constexpr int kNeighbours = 4;
  if (read_serde_number(plain) == value) return plain;
  // If two roundings change the shortest decimal, one with as many digits as fit into 64 bits usually does not.
  for (int exponent = 1; exponent <= kMostTens; ++exponent) {
    const double digits = std::abs(value) * power_of_ten(exponent);
    if (digits >= 0x1p64) break;
    if (digits < 0x1p53) continue;
    for (const double near : neighbours(digits, kNeighbours)) {
      if (near >= 0x1p64) continue;
      std::string text = value < 0 ? "-" : "";
      text += std::to_string(static_cast<uint64_t>(near)) + "e-" + std::to_string(exponent);
      if (read_serde_number(text) == value) return text;
    }
  }
  return plain;
}

}  // namespace witan
