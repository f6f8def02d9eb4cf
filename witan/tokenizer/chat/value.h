// Values in templates: Python's, as far as JSON has them, with Python's rules for truth, equality, order and text.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "witan/tokenizer/chat/strings.h"

namespace witan::jinja {

class Value;
using Items = std::vector<Value>;
using Entries = std::vector<std::pair<Value, Value>>;  // in the order of insertion; keys are hashable in Python

struct Undefined {
  std::string name;  // of the missing value
};
struct None {};
// An integer that does not fit into 64 bits.
struct BigInteger {
  std::shared_ptr<const std::string> digits;  // decimal, without leading zeros, with an optional minus sign
};
// `depth` (levels of nesting) and `weight` (8-byte pieces of text and values, as printed) describe the whole value.
// They are bounded when a value is created, so that visiting a value always terminates.
struct Sequence {
  std::shared_ptr<const Items> items;
  bool tuple = false;
  // Python prints views of dicts, and ranges, differently from lists, and they equal no list: "dict_keys", "range(0,
  // 3)".
  std::shared_ptr<const std::string> view = nullptr;
  int depth = 1;
  uint64_t weight = 1;
};
struct Mapping {
  std::shared_ptr<const Entries> entries;
  int depth = 1;
  uint64_t weight = 1;
};
struct Namespace {
  std::map<std::string, Value> attributes;
};
struct Macro;  // syntax.h
// The `loop` of a for statement.
struct Loop {
  std::shared_ptr<const Items> items;
  size_t index = 0;
};
enum class Global { range, raise_exception, strftime_now, make_namespace, make_dict };

// Immutable, except for the attributes of a namespace. Namespaces and loops belong to the rendering, macros to the
// syntax tree.
class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const MarkedText>, Sequence,
                               Mapping, Namespace*, const Loop*, const Macro*, Global, BigInteger>;

  Value() : is_(Undefined{}) {}
  Value(Variant is) : is_(std::move(is)) {}  // NOLINT(google-explicit-constructor)
  explicit Value(std::string text) : Value(Value::text(std::move(text))) {}
  static Value text(std::string text) { return Value::text(MarkedText{std::move(text)}); }
  static Value text(MarkedText text) { return Variant(std::make_shared<const MarkedText>(std::move(text))); }
  // Throw DataError for values that are too deep or too large.
  static Value list(Items items, bool tuple = false);
  static Value view(Items items, std::string view);
  static Value dict(Entries entries);
  static Value integer(int64_t number) { return Variant(number); }
  // `digits` are decimal, with an optional sign. Throws DataError for more digits than Python accepts.
  static Value integer(std::string_view digits);
  static Value boolean(bool value) { return Variant(value); }
  static Value none() { return Variant(None{}); }
  static Value undefined(std::string name) { return Variant(Undefined{std::move(name)}); }

  template <class T>
  const T* as() const {
    return std::get_if<T>(&is_);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  const MarkedText* marked() const {
    const auto* text = as<std::shared_ptr<const MarkedText>>();
    return text ? text->get() : nullptr;
  }
  const std::string* string() const {
    const MarkedText* text = marked();
    return text ? &text->bytes : nullptr;
  }
  const Sequence* sequence() const { return as<Sequence>(); }
  const Entries* entries() const {
    const auto* dict = as<Mapping>();
    return dict ? dict->entries.get() : nullptr;
  }
  const Variant& variant() const { return is_; }

 private:
  Variant is_;
};

// "a string", "a list", "undefined", ...
std::string type_name(const Value& value);
bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
// The exact order of two numbers of any kinds.
std::partial_ordering order_of_numbers(const Value& a, const Value& b);
// a < b. Throws DataError for values that have no order.
bool less(const Value& a, const Value& b);
// Python's str() and repr(); str() of an undefined value is empty.
std::string str(const Value& value);
MarkedText marked_str(const Value& value);
std::string repr(const Value& value);
// A float as Python prints it.
std::string float_text(double number);
// The cost of visiting the whole value, in units of eight bytes of text or one value.
uint64_t weight_of(const Value& value);
// Whether the value is a number (booleans count), and its value; for large integers the nearest float.
bool is_number(const Value& value);
double number_of(const Value& value);
// The value of an integer or boolean. Throws DataError for anything else; `what` names it in the message.
int64_t integer_of(const Value& value, std::string_view what);
bool is_integer(const Value& value);  // excludes booleans
// The entry of a dict, or nullptr.
const Value* find(const Entries& entries, std::string_view key);
const Value* find(const Entries& entries, const Value& key);
// Sets the entry of a key, replacing an existing one in place. Throws DataError for a key that Python cannot hash.
void set_entry(Entries& entries, Value key, Value value);
// The items that a for loop visits: items, keys of a dict, characters of a string; nothing for an undefined value.
// Throws DataError for values that cannot be iterated over.
Items items_of(const Value& value);
// Throws DataError for values without a length.
int64_t length_of(const Value& value);

struct JsonStyle {
  std::optional<std::string> indent = {};  // per level; nullopt: one line
  bool sort_keys = false, ascii = false;
  std::optional<std::pair<std::string, std::string>> separators = {};  // between items, and after keys
};
// JSON as Python's json.dumps() writes it. Throws DataError for values that JSON cannot express.
MarkedText marked_json(const Value& value, const JsonStyle& style = {});
std::string to_json(const Value& value);
// Throws DataError for text that is not JSON or nested deeper than 64; `what` names it.
Value from_json(std::string_view text, std::string_view what);
// Copies the value with all texts marked as given rather than the template's own (MarkedText).
Value given(const Value& value);

// The number of characters of UTF-8 text.
int64_t characters(std::string_view text);
// The byte at which character `index` begins, or the text's size. O(index).
size_t byte_of(std::string_view text, int64_t index);

}  // namespace witan::jinja
