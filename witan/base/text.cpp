#include "witan/base/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

std::string scaled(double value, double step, const std::vector<const char*>& units) {
  size_t unit = 0;
  // Half a unit early, so that what would round to "1000 K" reads "1.00 M".
  while (std::abs(value) >= step - (unit == 0 ? 0 : 0.5) && unit + 1 < units.size()) value /= step, ++unit;
  if (unit == 0 && value == std::floor(value)) return fmt::format("{:.0f}{}", value, units[0]);
  const int decimals = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

// Letters that are dropped, added or others, and neighbours that changed places (optimal string alignment).
int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> before, last, row(b.size() + 1);  // of the prefixes of a two letters, one and none shorter
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = static_cast<int64_t>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({last[j + 1] + 1, row[j] + 1, last[j] + (a[i] != b[j])});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
  }
  return row.back();
}

// Finds the name that is nearest to a word.
class Slips {
 public:
  explicit Slips(std::string_view word) : word_(word) {
    const auto letters = static_cast<int64_t>(word.size() - std::min(word.find_first_not_of('-'), word.size()));
    least_ = std::max<int64_t>(letters / 3, 1) + 1;  // so far away is another word
  }
  // Whether the word is nearer to this name than to all names before.
  bool fewer_to(std::string_view name) {
    const auto longer = std::max(word_.size(), name.size()), shorter = std::min(word_.size(), name.size());
    if (static_cast<int64_t>(longer - shorter) >= least_) return false;  // also bounds the work on a hostile word
    const int64_t distance = edit_distance(word_, name);
    if (distance >= least_) return false;
    least_ = distance;
    return true;
  }

 private:
  std::string_view word_;
  int64_t least_;
};

// Length of the valid UTF-8 sequence at `p`, or 0.
size_t utf8_length(const unsigned char* p, size_t left) {
  const auto continuation = [&](size_t i) { return i < left && (p[i] & 0xC0) == 0x80; };
  if (p[0] < 0x80) return 1;
  if (p[0] >= 0xC2 && p[0] <= 0xDF) return continuation(1) ? 2 : 0;
  if ((p[0] & 0xF0) == 0xE0) {
    if (!continuation(1) || !continuation(2)) return 0;
    if (p[0] == 0xE0 && p[1] < 0xA0) return 0;  // overlong
    if (p[0] == 0xED && p[1] > 0x9F) return 0;  // surrogate
    return 3;
  }
  if (p[0] >= 0xF0 && p[0] <= 0xF4) {
    if (!continuation(1) || !continuation(2) || !continuation(3)) return 0;
    if (p[0] == 0xF0 && p[1] < 0x90) return 0;  // overlong
    if (p[0] == 0xF4 && p[1] > 0x8F) return 0;  // above U+10FFFF
    return 4;
  }
  return 0;
}

}  // namespace

std::string format_bytes(double bytes) {
  // Fractions of bytes are never shown, not even for means and rates.
  return scaled(std::abs(bytes) < 1024 ? std::round(bytes) : bytes, 1024,
                {" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
}
std::string format_count(double count) {
  return scaled(count, 1000, {"", " K", " M", " G", " T", " P"});
}

std::string format_duration(double seconds) {
  if (!(std::abs(seconds) < 1e12)) return "unknown";
  if (std::abs(seconds) < 5e-8) return "0 s";  // less than any clock here shows
  if (seconds < 0.9995) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.3g} s", seconds);
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total < 3600) return fmt::format("{} min {} s", total / 60, total % 60);
  if (total < 86400) return fmt::format("{} h {} min", total / 3600, total % 3600 / 60);
  return fmt::format("{} d {} h", total / 86400, total % 86400 / 3600);
}

uint64_t parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const bool binary = unit.size() == 3 && unit.ends_with("iB");
  const std::string_view prefixes = "kKmMgGtT";
  size_t power = 0;
  bool known = unit.empty() || unit == "B";
  if (!known && prefixes.find(unit[0]) != std::string_view::npos) {
    power = prefixes.find(unit[0]) / 2 + 1;
    known = unit.size() == 1 || binary || (unit.size() == 2 && unit[1] == 'B');
  }
  const double bytes = value * std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power));
  require<ConfigError>(error == std::errc() && known && bytes >= 0 && bytes < 0x1p63, "\"", text,
                       "\" is not a size: write a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 8GB");
  return static_cast<uint64_t>(bytes);
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  Slips slips(word);
  std::string best;
  for (const std::string& candidate : candidates)
    if (slips.fewer_to(candidate)) best = candidate;
  return best;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates, OtherNames others) {
  Slips slips(word);
  std::string near;
  for (const std::string& candidate : candidates)
    if (slips.fewer_to(candidate)) near = candidate;
  constexpr size_t kShort = 6;  // "tp" and "pp" are no slips of each other
  for (const auto& [other, name] : others) {
    if (std::ranges::find(candidates, name) == candidates.end()) continue;
    if (word == other || (other.size() > kShort && slips.fewer_to(other))) near = name;
    if (word == other) break;
  }
  return near.empty() ? near : cat(" (did you mean ", near, "?)");
}

std::string clipped(std::string_view text, size_t most) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_length(reinterpret_cast<const unsigned char*>(text.data()) + i, text.size() - i);
    // U+0080 to U+009F are controls, too, among them U+009B, with which terminals' commands may begin.
    const bool high_control = length == 2 && byte == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    const bool shown = length > 1 ? !high_control : length == 1 && byte >= 0x20 && byte != 0x7F;
    const std::string piece = shown ? std::string(text.substr(i, length)) : fmt::format("\\x{:02X}", byte);
    if (out.size() + piece.size() > most) return out + "...";
    out += piece;
    i += shown ? length : 1;
  }
  return out;
}

std::string printable(std::string_view message) {
  std::string text;
  while (!message.empty()) {
    const size_t end = std::min(message.find_first_of("\n\t"), message.size());
    text += clipped(message.substr(0, end), std::string::npos);
    text += message.substr(end, 1);
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  return text;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+,:=@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

size_t find_invalid_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(p + i, text.size() - i);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bad = find_invalid_utf8(text);
    out.append(text.substr(0, bad));
    if (bad == std::string_view::npos) break;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(bad + 1);
    while (!text.empty() && (static_cast<unsigned char>(text[0]) & 0xC0) == 0x80) text.remove_prefix(1);
  }
  return out;
}

}  // namespace witan
