#include "witan/tokenizer/chat/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::jinja {
namespace {

constexpr int kMostDepth = 64;        // of JSON that is read
constexpr int kMostValueDepth = 200;  // of what a template makes of it
constexpr uint64_t kMostWeight = uint64_t{1} << 26;

int depth_of(const Value& value) {
  if (const auto* sequence = value.sequence()) return sequence->depth;
  const auto* mapping = value.as<Mapping>();
  return mapping ? mapping->depth : 0;
}

void check_size(int depth, uint64_t weight) {
  require<DataError>(depth <= kMostValueDepth, "a value is nested deeper than ", kMostValueDepth);
  require<DataError>(weight <= kMostWeight, "a value is larger than a template may make it");
}

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

std::string python_quoted(std::string_view text) {
  const bool use_double = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  constexpr const char* kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\' || c == quote) {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string sequence_text(const Sequence& sequence) {
  std::string out(1, sequence.tuple ? '(' : '[');
  for (size_t i = 0; i < sequence.items->size(); ++i) out += (i ? ", " : "") + repr((*sequence.items)[i]);
  if (sequence.tuple && sequence.items->size() == 1) out += ',';
  return out + (sequence.tuple ? ')' : ']');
}

std::string dict_text(const Entries& entries) {
  std::string out = "{";
  for (const auto& [key, value] : entries)
    out += (out.size() > 1 ? ", " : "") + python_quoted(key) + ": " + repr(value);
  return out + "}";
}

// The equality of Python's dicts: whatever the order.
bool same_entries(const Entries& a, const Entries& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a) {
    const Value* other = find(b, key);
    if (!other || !equal(value, *other)) return false;
  }
  return true;
}

bool same_items(const Items& a, const Items& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!equal(a[i], b[i])) return false;
  return true;
}

class JsonText {
 public:
  explicit JsonText(const JsonStyle& style) : style_(style) {}

  std::string write(const Value& value) {
    add(value, 0);
    return std::move(out_);
  }

 private:
  void new_line(int64_t level) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent * level), ' ');
  }

  void add_text(std::string_view text) {
    using nlohmann::json;
    std::string written = json(text).dump(-1, ' ', style_.ascii, json::error_handler_t::replace);
    // Python leaves DEL as it is, nlohmann too where it may write more than ASCII.
    out_ += written;
  }

  void add(const Value& value, int64_t level) {
    if (const auto* items = value.sequence())
      add_all('[', ']', *items->items, level, [&](const Value& item) { add(item, level + 1); });
    else if (const auto* entries = value.entries())
      add_entries(*entries, level);
    else if (const auto* text = value.string())
      add_text(*text);
    else if (value.is_none())
      out_ += "null";
    else if (const auto* flag = value.as<bool>())
      out_ += *flag ? "true" : "false";
    else if (is_number(value))
      out_ += str(value);
    else
      throw DataError(cat("tojson: ", type_name(value), " has no JSON"));
  }

  void add_entries(const Entries& entries, int64_t level) {
    std::vector<const std::pair<std::string, Value>*> order;
    for (const auto& entry : entries) order.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->first < b->first; });
    add_all('{', '}', order, level, [&](const auto* entry) {
      add_text(entry->first);
      out_ += ": ";
      add(entry->second, level + 1);
    });
  }

  template <class All, class Add>
  void add_all(char open, char close, const All& all, int64_t level, const Add& add_one) {
    out_ += open;
    bool first = true;
    for (const auto& one : all) {
      if (!first) out_ += style_.indent < 0 ? ", " : ",";
      first = false;
      new_line(level + 1);
      add_one(one);
    }
    if (!first) new_line(level);
    out_ += close;
  }

  const JsonStyle& style_;
  std::string out_;
};

Value value_of(const nlohmann::ordered_json& json) {
  if (json.is_object()) {
    Entries entries;
    for (const auto& [key, value] : json.items()) entries.emplace_back(key, value_of(value));
    return Value::dict(std::move(entries));
  }
  if (json.is_array()) {
    Items items;
    for (const auto& value : json) items.push_back(value_of(value));
    return Value::list(std::move(items));
  }
  if (json.is_string()) return Value::text(json.get<std::string>());
  if (json.is_boolean()) return Value::boolean(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return Value::Variant(json.get<double>());
  if (json.is_number_integer()) return Value::integer(json.get<int64_t>());
  if (json.is_number()) return Value::Variant(json.get<double>());
  return Value::none();
}

}  // namespace

Value Value::list(Items items, bool tuple) {
  Sequence made{nullptr, tuple};
  for (const Value& item : items) {
    made.depth = std::max(made.depth, depth_of(item) + 1);
    made.weight += weight_of(item);
    check_size(made.depth, made.weight);
  }
  made.items = std::make_shared<const Items>(std::move(items));
  return Variant(std::move(made));
}

Value Value::dict(Entries entries) {
  Mapping made;
  for (const auto& [key, value] : entries) {
    made.depth = std::max(made.depth, depth_of(value) + 1);
    made.weight += 1 + key.size() / 8 + weight_of(value);
    check_size(made.depth, made.weight);
  }
  made.entries = std::make_shared<const Entries>(std::move(entries));
  return Variant(std::move(made));
}

uint64_t weight_of(const Value& value) {
  if (const auto* text = value.string()) return 1 + text->size() / 8;
  if (const auto* sequence = value.sequence()) return sequence->weight;
  const auto* mapping = value.as<Mapping>();
  return mapping ? mapping->weight : 1;
}

std::string type_name(const Value& value) {
  static constexpr std::array<const char*, 12> names = {"undefined",   "none",     "a boolean", "an integer",
                                                        "a float",     "a string", "a list",    "a dict",
                                                        "a namespace", "a loop",   "a macro",   "a function"};
  return names[value.variant().index()];
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto* text = value.string()) return !text->empty();
  if (const auto* sequence = value.sequence()) return !sequence->items->empty();
  if (const auto* entries = value.entries()) return !entries->empty();
  return !is_number(value) || number_of(value) != 0;
}

bool is_number(const Value& value) {
  return value.as<bool>() || value.as<int64_t>() || value.as<double>();
}

double number_of(const Value& value) {
  if (const auto* flag = value.as<bool>()) return *flag ? 1 : 0;
  if (const auto* integer = value.as<int64_t>()) return static_cast<double>(*integer);
  return *value.as<double>();
}

int64_t integer_of(const Value& value, std::string_view what) {
  if (const auto* flag = value.as<bool>()) return *flag ? 1 : 0;
  const auto* integer = value.as<int64_t>();
  require<DataError>(integer != nullptr, what, " must be an integer, and is ", type_name(value));
  return *integer;
}

bool equal(const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) {
    const auto *x = a.as<int64_t>(), *y = b.as<int64_t>();
    return x && y ? *x == *y : number_of(a) == number_of(b);
  }
  if (a.string() && b.string()) return *a.string() == *b.string();
  if (a.sequence() && b.sequence())
    return a.sequence()->tuple == b.sequence()->tuple && same_items(*a.sequence()->items, *b.sequence()->items);
  if (a.entries() && b.entries()) return same_entries(*a.entries(), *b.entries());
  if (a.is_undefined() || a.is_none()) return a.variant().index() == b.variant().index();
  if (const auto* space = a.as<Namespace*>()) return b.as<Namespace*>() && *space == *b.as<Namespace*>();
  if (const auto* macro = a.as<const Macro*>()) return b.as<const Macro*>() && *macro == *b.as<const Macro*>();
  if (const auto* global = a.as<Global>()) return b.as<Global>() && *global == *b.as<Global>();
  return false;
}

bool less(const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) {
    const auto *x = a.as<int64_t>(), *y = b.as<int64_t>();
    return x && y ? *x < *y : number_of(a) < number_of(b);
  }
  if (a.string() && b.string()) return *a.string() < *b.string();  // bytes of UTF-8 have the order of characters
  require<DataError>(a.sequence() && b.sequence(), type_name(a), " and ", type_name(b), " have no order");
  const Items &x = *a.sequence()->items, &y = *b.sequence()->items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (!equal(x[i], y[i])) return less(x[i], y[i]);
  return x.size() < y.size();
}

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer{};
  const double size = std::abs(number);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                     scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer.data(), written.ptr);
  if (!scientific && text.find('.') == text.npos) text += ".0";
  return text;
}

std::string str(const Value& value) {
  if (const auto* text = value.string()) return *text;
  return value.is_undefined() ? "" : repr(value);
}

std::string repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (const auto* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const auto* integer = value.as<int64_t>()) return std::to_string(*integer);
  if (const auto* number = value.as<double>()) return float_text(*number);
  if (const auto* text = value.string()) return python_quoted(*text);
  if (const auto* sequence = value.sequence()) return sequence_text(*sequence);
  if (const auto* entries = value.entries()) return dict_text(*entries);
  throw DataError(cat(type_name(value), " has no text"));
}

const Value* find(const Entries& entries, std::string_view key) {
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

Items items_of(const Value& value) {
  Items items;
  if (const auto* sequence = value.sequence()) return *sequence->items;
  if (const auto* entries = value.entries()) {
    for (const auto& entry : *entries) items.push_back(Value::text(entry.first));
  } else if (const auto* text = value.string()) {
    for (size_t at = 0; at < text->size();) {
      const size_t size = byte_of(std::string_view(*text).substr(at), 1);
      items.push_back(Value::text(text->substr(at, size)));
      at += size;
    }
  } else {
    require<DataError>(value.is_undefined(), type_name(value), " cannot be iterated over");
  }
  return items;
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const auto* text = value.string()) return characters(*text);
  if (const auto* entries = value.entries()) return static_cast<int64_t>(entries->size());
  require<DataError>(value.sequence() != nullptr, type_name(value), " has no length");
  return static_cast<int64_t>(value.sequence()->items->size());
}

std::string to_json(const Value& value, const JsonStyle& style) {
  return JsonText(style).write(value);
}

Value from_json(std::string_view text, std::string_view what) {
  using Json = nlohmann::ordered_json;
  const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
    require<DataError>(depth <= kMostDepth, what, ": JSON is nested deeper than ", kMostDepth);
    return true;
  };
  try {
    return value_of(Json::parse(text, shallow));
  } catch (const Json::exception& error) {
    throw DataError(cat(what, ": not valid JSON: ", error.what()));
  }
}

int64_t characters(std::string_view text) {
  int64_t count = 0;
  for (const char byte : text) count += !continues(byte);
  return count;
}

size_t byte_of(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; at < text.size() && index > 0; --index)
    for (++at; at < text.size() && continues(text[at]);) ++at;
  return at;
}

}  // namespace witan::jinja
