#include "witan/tasks/python.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using jinja::Value;

class LiteralParser {
 public:
  LiteralParser(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  Value run() {
    Value value = read(0);
    skip_space();
    if (at_ < text_.size()) fail("text follows the value");
    return value;
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    throw DataError(cat(what_, " gives ", clipped(text_), ", which is not a list of choices: byte ", at_, ": ", why));
  }
  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (now() == ' ' || now() == '\t' || now() == '\n' || now() == '\r') ++at_;
  }

  Value read(int depth) {
    constexpr int kMostLevels = 32;
    if (depth > kMostLevels) fail("lists are nested too deeply");
    skip_space();
    const char first = now();
    if (first == '[' || first == '(') return read_list(first == '[' ? ']' : ')', depth);
    if (first == '\'' || first == '"') return read_strings();
    return read_word();
  }

  Value read_list(char end, int depth) {
    ++at_;
    jinja::Items items;
    for (;;) {
      skip_space();
      if (now() == end) break;
      items.push_back(read(depth + 1));
      skip_space();
      if (now() == ',')
        ++at_;
      else if (now() != end)
        fail("expected a comma or the list's end");
    }
    ++at_;
    return Value::list(std::move(items), end == ')');
  }

  // Adjacent strings are one string, as in Python.
  Value read_strings() {
    std::string text;
    while (now() == '\'' || now() == '"') {
      read_string(text);
      skip_space();
    }
    return Value::text(std::move(text));
  }

  void read_string(std::string& out) {
    const char quote = text_[at_++];
    while (now() != quote) {
      if (at_ >= text_.size()) fail("a string is not closed");
      if (now() == '\n') fail("a string has a line end");
      if (now() == '\\')
        read_escape(out);
      else
        out += text_[at_++];
    }
    ++at_;
  }

  void read_escape(std::string& out) {
    constexpr std::string_view kNames = "abfnrtv\\'\"0", kValues("\a\b\f\n\r\t\v\\'\"\0", 11);
    ++at_;
    const char kind = now();
    const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits > 0) {
      ++at_;
      uint32_t code = 0;
      const char* const begin = text_.data() + at_;
      if (at_ + digits > text_.size() || std::from_chars(begin, begin + digits, code, 16).ptr != begin + digits)
        fail("an escape is cut short");
      at_ += digits;
      append_code(out, code);
    } else if (const size_t known = kNames.find(kind); at_ < text_.size() && known != kNames.npos) {
      out += kValues[known];
      ++at_;
    } else {
      out += '\\';
    }
  }

  void append_code(std::string& out, uint32_t code) const {
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("an escape is not a valid character");
    const auto byte = [&](uint32_t value) { out += static_cast<char>(value); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) {
      byte(0xC0 | code >> 6);
    } else if (code < 0x10000) {
      byte(0xE0 | code >> 12);
      byte(0x80 | (code >> 6 & 63));
    } else {
      byte(0xF0 | code >> 18);
      byte(0x80 | (code >> 12 & 63));
      byte(0x80 | (code >> 6 & 63));
    }
    byte(0x80 | (code & 63));
  }

  Value read_word() {
    size_t end = at_;
    while (end < text_.size() && std::string_view(",]) \t\r\n").find(text_[end]) == std::string_view::npos) ++end;
    const std::string_view word = text_.substr(at_, end - at_);
    Value value;
    int64_t integer = 0;
    double real = 0;
    const char* const last = word.data() + word.size();
    if (word == "True" || word == "False")
      value = Value::boolean(word == "True");
    else if (word == "None")
      value = Value::none();
    else if (const auto whole = std::from_chars(word.data(), last, integer);
             whole.ec == std::errc() && whole.ptr == last)
      value = Value::integer(integer);
    else if (const auto read = std::from_chars(word.data(), last, real); read.ec == std::errc() && read.ptr == last)
      value = Value(jinja::Value::Variant(real));
    else
      fail("a string must stand in quotes");
    at_ = end;
    return value;
  }

  std::string_view text_, what_;
  size_t at_ = 0;
};

}  // namespace

jinja::Value parse_python_literal(std::string_view text, std::string_view what) {
  return LiteralParser(text, what).run();
}

PythonRandom::PythonRandom(uint32_t seed) {
  state_[0] = 19650218;
  for (size_t i = 1; i < kWords; ++i)
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<uint32_t>(i);
  size_t i = 1;
  const auto advance = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  // The key is one word, the seed.
  for (size_t k = 0; k < kWords; ++k, advance())
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + seed;
  for (size_t k = 1; k < kWords; ++k, advance())
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - static_cast<uint32_t>(i);
  state_[0] = 0x80000000U;
}

void PythonRandom::refill() {
  constexpr size_t kShift = 397;
  for (size_t i = 0; i < kWords; ++i) {
    const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kWords] & 0x7fffffffU);
    state_[i] = state_[(i + kShift) % kWords] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfU : 0);
  }
  at_ = 0;
}

uint32_t PythonRandom::next() {
  if (at_ == kWords) refill();
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

size_t PythonRandom::below(size_t bound) {
  const int bits = std::bit_width(bound);
  for (;;)
    if (const size_t drawn = next() >> (32 - bits); drawn < bound) return drawn;
}

std::vector<size_t> PythonRandom::sample(size_t size, size_t count) {
  assert(count <= size);
  // CPython's estimate: up to this size a list of all takes less memory than a set of the chosen.
  size_t set_size = 21;
  if (count > 5)
    set_size += static_cast<size_t>(std::pow(4, std::ceil(std::log(static_cast<double>(count * 3)) / std::log(4.0))));
  std::vector<size_t> chosen(count);
  if (size <= set_size) {
    std::vector<size_t> pool(size);
    std::iota(pool.begin(), pool.end(), size_t{0});
    for (size_t i = 0; i < count; ++i) {
      const size_t j = below(size - i);
      chosen[i] = pool[j];
      pool[j] = pool[size - i - 1];
    }
    return chosen;
  }
  std::set<size_t> taken;
  for (size_t& one : chosen) {
    do one = below(size);
    while (!taken.insert(one).second);
  }
  return chosen;
}

}  // namespace witan
