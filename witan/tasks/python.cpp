#include "witan/tasks/python.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
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

namespace {

using jinja::Entries;
using jinja::Value;

constexpr size_t kMostBytes = 4 << 20;
constexpr int kMostIncludes = 8;  // nested includes
constexpr int kMostNested = 100;  // nested lists and mappings
constexpr int64_t kMostValues = 1 << 20;

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  Number number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

Value scalar_of(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  const std::string& tag = node.Tag();
  if (tag.size() > 1 && tag.starts_with('!')) return Value::dict({{Value::text(tag), Value::text(text)}});
  require<DataError>(find_invalid_utf8(text) == std::string::npos, "text that is not UTF-8");
  if (tag != "?") return Value::text(text);  // quoted, or a block scalar
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return Value::none();
  if (text == "true" || text == "True" || text == "TRUE") return Value::boolean(true);
  if (text == "false" || text == "False" || text == "FALSE") return Value::boolean(false);
  if (const auto integer = number_in<int64_t>(text)) return Value::integer(*integer);
  const bool numeric = text.find_first_not_of("0123456789+-.eE") == std::string::npos;
  if (const auto real = number_in<double>(text); real && numeric) return Value(Value::Variant(*real));
  return Value::text(text);
}

// An alias repeats the whole value of its anchor, so a few bytes can expand beyond memory, or an alias can contain
// itself.
class NodeReader {
 public:
  Value value_of(const YAML::Node& node, int depth = 0) {
    require<DataError>(depth <= kMostNested, "lists and mappings are nested more than ", kMostNested,
                       " deep: does an alias (*NAME) occur within its own anchor (&NAME)?");
    require<DataError>(++values_ <= kMostValues, "more than ", kMostValues,
                       " values, those of aliases (*NAME) included, are not supported");
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        return Value::none();
      case YAML::NodeType::Scalar:
        return scalar_of(node);
      case YAML::NodeType::Sequence: {
        jinja::Items items;
        for (const YAML::Node& item : node) items.push_back(value_of(item, depth + 1));
        return Value::list(std::move(items));
      }
      case YAML::NodeType::Map:
        return mapping_of(node, depth);
    }
    return Value::none();
  }

 private:
  Value mapping_of(const YAML::Node& node, int depth) {
    Entries entries;
    std::map<std::string, size_t> places;
    for (const auto& entry : node) {
      require<DataError>(entry.first.IsScalar(), "a key that is a list or a mapping is not supported");
      const auto [place, is_new] = places.emplace(entry.first.Scalar(), entries.size());
      if (is_new) entries.emplace_back(place->first, Value());
      entries[place->second].second = value_of(entry.second, depth + 1);  // the last value of a repeated key counts
    }
    return Value::dict(std::move(entries));
  }

  int64_t values_ = 0;
};

void put_all(Entries& all, const Entries& more) {
  for (const auto& [key, value] : more) {
    std::erase_if(all, [&key = key](const auto& entry) { return equal(entry.first, key); });
    all.emplace_back(key, value);
  }
}

Entries with_includes(const fs::path& file, int depth) {
  require<DataError>(depth <= kMostIncludes, file.string(), ": files include one another more than ", kMostIncludes,
                     " deep: remove the cycle of includes");
  Entries own = *parse_yaml(read_file(file), file.string()).entries(), all;
  const Value* include = find(own, "include");
  if (!include) return own;
  for (const Value& one : include->sequence() ? *include->sequence()->items : jinja::Items{*include}) {
    require<DataError>(one.string() != nullptr, file.string(), ": include takes file names, not ", type_name(one));
    put_all(all, with_includes(file.parent_path() / *one.string(), depth + 1));
  }
  put_all(all, own);
  std::erase_if(all, [](const auto& entry) { return *entry.first.string() == "include"; });
  return all;
}

}  // namespace

jinja::Value parse_yaml(const std::string& text, const std::string& name) {
  require<DataError>(text.size() <= kMostBytes, name, ": a task of more than ", format_bytes(kMostBytes),
                     " is not supported");
  Value value;
  try {
    value = NodeReader().value_of(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    throw DataError(cat(name, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  } catch (const DataError& error) {
    throw DataError(cat(name, ": ", error.what()));
  }
  require<DataError>(value.entries() != nullptr, name, ": a task is a mapping of keys, not ", type_name(value));
  return value;
}

jinja::Value read_yaml_file(const fs::path& file) {
  return Value::dict(with_includes(file, 0));
}

}  // namespace witan
