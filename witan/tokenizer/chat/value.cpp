#include "witan/tokenizer/chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/strings.h"

namespace witan::jinja {
namespace {

constexpr size_t kMostDepth = 64;     // of parsed JSON
constexpr int kMostValueDepth = 200;  // of values that templates build
constexpr uint64_t kMostWeight = uint64_t{1} << 26;

int depth_of(const Value& value) {
  if (const auto* sequence = value.sequence()) return sequence->depth;
  const auto* mapping = value.as<Mapping>();
  return mapping ? mapping->depth : 0;
}

void check_size(int depth, uint64_t weight) {
  require<DataError>(depth <= kMostValueDepth, "a value is nested deeper than ", kMostValueDepth);
  require<DataError>(weight <= kMostWeight, "a value is larger than a template may build");
}

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

void add_quoted(MarkedText& out, const MarkedText& text) {
  const bool use_double = text.bytes.find('\'') != text.bytes.npos && text.bytes.find('"') == text.bytes.npos;
  const char quote = use_double ? '"' : '\'';
  MarkedText quoted{std::string(1, quote)};
  const std::string_view bytes = text.bytes;
  const auto as_it_is = [&](char c) { return c >= ' ' && c < 0x7F && c != '\\' && c != quote; };
  for (size_t at = 0; at < bytes.size();) {
    size_t size = 0;
    while (at + size < bytes.size() && as_it_is(bytes[at + size])) ++size;
    quoted.append(text, at, size);
    at += size;
    if (at == bytes.size()) break;
    size = byte_of(bytes.substr(at), 1);
    const MarkedText one = text.part(bytes.substr(at, size));
    if (const std::string escape = repr_escape(one.bytes, quote); escape.empty())
      quoted.append(one);
    else
      quoted.append(one.remade(escape));
    at += size;
  }
  quoted.append(std::string_view(&quote, 1));
  if (text.markup) {
    out.append("Markup(");
    quoted.append(")");
  }
  out.append(quoted);
}

void add_repr(MarkedText& out, const Value& value);

void add_sequence(MarkedText& out, const Sequence& sequence) {
  const std::string view = sequence.view ? *sequence.view : "";
  out.append(view);
  if (view.ends_with(')')) return;
  if (sequence.view) out.append("(");
  out.append(sequence.tuple ? "(" : "[");
  for (size_t i = 0; i < sequence.items->size(); ++i) {
    if (i > 0) out.append(", ");
    add_repr(out, (*sequence.items)[i]);
  }
  out.append(sequence.tuple ? sequence.items->size() == 1 ? ",)" : ")" : "]");
  if (sequence.view) out.append(")");
}

void add_dict(MarkedText& out, const Entries& entries) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : entries) {
    if (!std::exchange(first, false)) out.append(", ");
    add_repr(out, key);
    out.append(": ");
    add_repr(out, value);
  }
  out.append("}");
}

void add_repr(MarkedText& out, const Value& value) {
  if (const auto* text = value.marked()) return add_quoted(out, *text);
  if (const auto* sequence = value.sequence()) return add_sequence(out, *sequence);
  if (const auto* entries = value.entries()) return add_dict(out, *entries);
  if (value.is_undefined()) return out.append("Undefined");
  if (value.is_none()) return out.append("None");
  if (const auto* flag = value.as<bool>()) return out.append(*flag ? "True" : "False");
  if (const auto* integer = value.as<int64_t>()) return out.append(std::to_string(*integer));
  if (const auto* big = value.as<BigInteger>()) return out.append(*big->digits);
  if (const auto* number = value.as<double>()) return out.append(float_text(*number));
  throw DataError(cat(type_name(value), " has no text"));
}

// Compares integers given as decimal digits with an optional minus sign.
std::strong_ordering order_of_digits(std::string_view a, std::string_view b) {
  const bool negative = a.starts_with('-');
  if (negative != b.starts_with('-')) return negative ? std::strong_ordering::less : std::strong_ordering::greater;
  if (negative) return order_of_digits(b.substr(1), a.substr(1));
  return a.size() != b.size() ? a.size() <=> b.size() : a.compare(b) <=> 0;
}

// Whether Python could hash the value, so that it may be a key.
bool is_hashable(const Value& value) {
  if (const auto* sequence = value.sequence())
    return sequence->tuple && std::ranges::all_of(*sequence->items, is_hashable);
  return !value.entries();
}

// Equality of dicts, which ignores their order.
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

  MarkedText write(const Value& value) {
    add(value, 0);
    return std::move(out_);
  }

 private:
  void new_line(int64_t level) {
    if (!style_.indent) return;
    out_.append("\n");
    for (int64_t i = 0; i < level; ++i) out_.append(*style_.indent);
  }

  void add_text(const MarkedText& text) {
    using nlohmann::json;
    // Python does not escape DEL; neither does nlohmann unless restricted to ASCII.
    out_.append(text.remade(json(text.bytes).dump(-1, ' ', style_.ascii, json::error_handler_t::replace)));
  }

  void add(const Value& value, int64_t level) {
    const Sequence* items = value.sequence();
    require<DataError>(!items || !items->view,
                       "tojson: a dict's view or a range has no JSON: write |list before |tojson");
    if (items)
      add_all('[', ']', *items->items, level, [&](const Value& item) { add(item, level + 1); });
    else if (const auto* entries = value.entries())
      add_entries(*entries, level);
    else
      add_one(value);
  }

  void add_one(const Value& value) {
    if (const auto* text = value.marked()) return add_text(*text);
    if (value.is_none()) return out_.append("null");
    if (const auto* flag = value.as<bool>()) return out_.append(*flag ? "true" : "false");
    const double* real = value.as<double>();
    if (real && !std::isfinite(*real))
      return out_.append(std::isnan(*real) ? "NaN" : *real < 0 ? "-Infinity" : "Infinity");
    require<DataError>(is_number(value), "tojson: ", type_name(value), " has no JSON");
    out_.append(str(value));
  }

  // Keys in JSON are strings; Python writes other kinds of keys as strings, too.
  void add_key(const Value& key) {
    if (key.string()) return add_one(key);
    require<DataError>(is_number(key) || key.is_none(), "tojson: ", type_name(key), " cannot be a key in JSON");
    out_.append("\"");
    add_one(key);
    out_.append("\"");
  }

  void add_entries(const Entries& entries, int64_t level) {
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& entry : entries) order.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) { return less(a->first, b->first); });
    add_all('{', '}', order, level, [&](const auto* entry) {
      add_key(entry->first);
      out_.append(style_.separators ? style_.separators->second : ": ");
      add(entry->second, level + 1);
    });
  }

  template <class All, class Add>
  void add_all(char open, char close, const All& all, int64_t level, const Add& add_each) {
    const std::string_view between = style_.separators ? std::string_view(style_.separators->first)
                                     : style_.indent   ? std::string_view(",")
                                                       : std::string_view(", ");
    out_.bytes += open;
    bool first = true;
    for (const auto& one : all) {
      if (!std::exchange(first, false)) out_.append(between);
      new_line(level + 1);
      add_each(one);
    }
    if (!first) new_line(level);
    out_.bytes += close;
  }

  const JsonStyle& style_;
  MarkedText out_;
};

// Parses JSON directly to values, so that numbers beyond 64 bits keep all digits.
class JsonReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonReader(std::string_view what) : what_(what) {}

  Value take() { return std::move(value_); }

  bool null() override { return put(Value::none()); }
  bool boolean(bool flag) override { return put(Value::boolean(flag)); }
  bool number_integer(number_integer_t number) override { return put(Value::integer(number)); }
  bool number_unsigned(number_unsigned_t number) override { return put(Value::integer(std::to_string(number))); }
  bool number_float(number_float_t number, const string_t& written) override {
    const bool whole = written.find_first_of(".eE") == written.npos;
    return put(whole ? Value::integer(std::string_view(written)) : Value::Variant(number));
  }
  bool string(string_t& text) override { return put(Value::text(std::move(text))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(string_t& name) override {
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() override {
    Entries entries = std::move(open_.back().entries);
    open_.pop_back();
    return put(Value::dict(std::move(entries)));
  }
  bool end_array() override {
    Items items = std::move(open_.back().items);
    open_.pop_back();
    return put(Value::list(std::move(items)));
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw DataError(cat(what_, ": not valid JSON: ", error.what()));
  }

 private:
  struct Open {
    bool object = false;
    std::string key = {};
    Items items = {};
    Entries entries = {};
    std::unordered_map<std::string, size_t> places = {};  // index into entries, by key
  };

  bool open(bool object) {
    require<DataError>(open_.size() < kMostDepth, what_, ": JSON is nested deeper than ", kMostDepth);
    open_.push_back({object});
    return true;
  }

  // If a key repeats, its last value counts, in the position of the first.
  bool put(Value value) {
    if (open_.empty()) {
      value_ = std::move(value);
      return true;
    }
    Open& in = open_.back();
    if (!in.object) {
      in.items.push_back(std::move(value));
    } else if (const auto [place, fresh] = in.places.try_emplace(in.key, in.entries.size()); fresh) {
      in.entries.emplace_back(Value::text(in.key), std::move(value));
    } else {
      in.entries[place->second].second = std::move(value);
    }
    return true;
  }

  const std::string_view what_;
  std::vector<Open> open_;
  Value value_;
};

}  // namespace

Value Value::integer(std::string_view digits) {
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  constexpr size_t kMostDigits = 4300;  // Python's limit
  require<DataError>(digits.size() <= kMostDigits, "an integer has more than ", kMostDigits, " digits");
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
  std::string text = (negative ? "-" : "") + std::string(digits);
  int64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc()) return Variant(number);
  return Variant(BigInteger{std::make_shared<const std::string>(std::move(text))});
}

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

Value Value::view(Items items, std::string view) {
  Value made = list(std::move(items));
  std::get<Sequence>(made.is_).view = std::make_shared<const std::string>(std::move(view));
  return made;
}

Value Value::dict(Entries entries) {
  Mapping made;
  for (const auto& [key, value] : entries) {
    made.depth = std::max(made.depth, depth_of(value) + 1);
    made.weight += weight_of(key) + weight_of(value);
    check_size(made.depth, made.weight);
  }
  made.entries = std::make_shared<const Entries>(std::move(entries));
  return Variant(std::move(made));
}

uint64_t weight_of(const Value& value) {
  if (const auto* text = value.marked()) return 1 + text->bytes.size() / 8 + 2 * text->given.size();
  if (const auto* big = value.as<BigInteger>()) return 1 + big->digits->size() / 8;
  if (const auto* sequence = value.sequence()) return sequence->weight;
  const auto* mapping = value.as<Mapping>();
  return mapping ? mapping->weight : 1;
}

std::string type_name(const Value& value) {
  static constexpr std::array<const char*, 13> names = {
      "undefined", "none",        "a boolean", "an integer", "a float",    "a string",  "a list",
      "a dict",    "a namespace", "a loop",    "a macro",    "a function", "an integer"};
  return names[value.variant().index()];
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto* text = value.string()) return !text->empty();
  if (const auto* sequence = value.sequence()) return !sequence->items->empty();
  if (const auto* entries = value.entries()) return !entries->empty();
  return !is_number(value) || number_of(value) != 0;
}

bool is_integer(const Value& value) {
  return value.as<int64_t>() || value.as<BigInteger>();
}

bool is_number(const Value& value) {
  return is_integer(value) || value.as<bool>() || value.as<double>();
}

double number_of(const Value& value) {
  if (const auto* flag = value.as<bool>()) return *flag ? 1 : 0;
  if (const auto* integer = value.as<int64_t>()) return static_cast<double>(*integer);
  if (const auto* big = value.as<BigInteger>()) return std::strtod(big->digits->c_str(), nullptr);
  return *value.as<double>();
}

int64_t integer_of(const Value& value, std::string_view what) {
  if (const auto* flag = value.as<bool>()) return *flag ? 1 : 0;
  require<DataError>(!value.as<BigInteger>(), what, " must be an integer of 64 bits, but is larger");
  const auto* integer = value.as<int64_t>();
  require<DataError>(integer != nullptr, what, " must be an integer, but is ", type_name(value));
  return *integer;
}

std::partial_ordering order_of_numbers(const Value& a, const Value& b) {
  const double *x = a.as<double>(), *y = b.as<double>();
  const bool large = a.as<BigInteger>() || b.as<BigInteger>();
  if (!large && (x || y)) {
    static_assert(std::numeric_limits<long double>::digits >= 64);  // represents both kinds exactly
    const auto exact = [](const Value& v) {
      return v.as<double>() ? static_cast<long double>(*v.as<double>())
                            : static_cast<long double>(integer_of(v, "a number"));
    };
    return exact(a) <=> exact(b);
  }
  for (const double* real : {x, y})
    if (real && std::isnan(*real)) return std::partial_ordering::unordered;
  if (x && std::isinf(*x)) return *x <=> 0.0;
  if (y && std::isinf(*y)) return 0.0 <=> *y;
  const auto digits = [](const Value& v) {
    return v.as<double>() ? fmt::format("{:.0f}", *v.as<double>())
           : v.as<bool>() ? std::string(*v.as<bool>() ? "1" : "0")
                          : str(v);
  };
  return order_of_digits(digits(a), digits(b));
}

bool equal(const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) return order_of_numbers(a, b) == 0;
  if (a.string() && b.string()) return *a.string() == *b.string();
  if (a.sequence() && b.sequence())
    return a.sequence()->tuple == b.sequence()->tuple && !a.sequence()->view == !b.sequence()->view &&
           same_items(*a.sequence()->items, *b.sequence()->items);
  if (a.entries() && b.entries()) return same_entries(*a.entries(), *b.entries());
  if (a.is_undefined() || a.is_none()) return a.variant().index() == b.variant().index();
  if (const auto* space = a.as<Namespace*>()) return b.as<Namespace*>() && *space == *b.as<Namespace*>();
  if (const auto* macro = a.as<const Macro*>()) return b.as<const Macro*>() && *macro == *b.as<const Macro*>();
  if (const auto* global = a.as<Global>()) return b.as<Global>() && *global == *b.as<Global>();
  return false;
}

bool less(const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) return order_of_numbers(a, b) < 0;
  if (a.string() && b.string()) return *a.string() < *b.string();  // UTF-8 bytes sort in the order of characters
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

MarkedText marked_str(const Value& value) {
  if (const auto* text = value.marked()) return *text;
  MarkedText text;
  if (!value.is_undefined()) add_repr(text, value);
  return text;
}

std::string str(const Value& value) {
  return marked_str(value).bytes;
}

std::string repr(const Value& value) {
  MarkedText text;
  add_repr(text, value);
  return std::move(text.bytes);
}

const Value* find(const Entries& entries, std::string_view key) {
  for (const auto& [name, value] : entries)
    if (const std::string* text = name.string(); text && *text == key) return &value;
  return nullptr;
}

const Value* find(const Entries& entries, const Value& key) {
  if (key.string()) return find(entries, std::string_view(*key.string()));
  for (const auto& [name, value] : entries)
    if (equal(name, key)) return &value;
  return nullptr;
}

void set_entry(Entries& entries, Value key, Value value) {
  require<DataError>(is_hashable(key), type_name(key), " cannot be a key of a dict");
  const auto same = std::ranges::find_if(entries, [&](const auto& entry) { return equal(entry.first, key); });
  if (same != entries.end())
    same->second = std::move(value);
  else
    entries.emplace_back(std::move(key), std::move(value));
}

Items items_of(const Value& value) {
  Items items;
  if (const auto* sequence = value.sequence()) return *sequence->items;
  if (const auto* entries = value.entries()) {
    for (const auto& entry : *entries) items.push_back(entry.first);
  } else if (const MarkedText* text = value.marked()) {
    for (std::string_view left = text->bytes; !left.empty();) {
      const size_t size = byte_of(left, 1);
      MarkedText one = text->part(left.substr(0, size));
      one.markup = false;
      items.push_back(Value::text(std::move(one)));
      left.remove_prefix(size);
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

MarkedText marked_json(const Value& value, const JsonStyle& style) {
  return JsonText(style).write(value);
}

std::string to_json(const Value& value) {
  return marked_json(value).bytes;
}

Value from_json(std::string_view text, std::string_view what) {
  JsonReader reader(what);
  nlohmann::json::sax_parse(text, &reader);
  return reader.take();
}

Value given(const Value& value) {
  if (const std::string* text = value.string())
    return Value::text(text->empty() ? MarkedText{} : MarkedText{*text, {{0, text->size()}}});
  if (const Sequence* sequence = value.sequence()) {
    Items items;
    for (const Value& item : *sequence->items) items.push_back(given(item));
    return Value::list(std::move(items), sequence->tuple);
  }
  if (!value.entries()) return value;
  Entries entries;
  for (const auto& [key, item] : *value.entries()) entries.emplace_back(given(key), given(item));
  return Value::dict(std::move(entries));
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
