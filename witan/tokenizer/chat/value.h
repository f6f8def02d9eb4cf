// Values of templates: Python's, as far as JSON has them, with Python's rules for truth, equality, order and text.
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

#include "witan/tokenizer/chat/marked_text.h"

namespace witan::jinja {

class Value;
using Items = std::vector<Value>;
using Entries = std::vector<std::pair<Value, Value>>;  // in the order of insertion; keys are hashable in Python

struct Undefined {
  std::string name;  // of what is missing
};
struct None {};
// An integer that 64 bits do not hold.
struct BigInteger {
  std::shared_ptr<const std::string> digits;  // decimal, without leading zeros, perhaps behind a minus sign
};
// `depth` and `weight` are those of the whole value: levels within one another, and pieces of text and values written
// out. They are bounded where a value is made, so that nothing that visits one goes on for ever.
struct Sequence {
  std::shared_ptr<const Items> items;
  bool tuple = false;
  // Python prints a dict's views and ranges otherwise than lists, and they equal no list: "dict_keys", "range(0, 3)".
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
struct Macro;  // program.h
// The `loop` of a for statement.
struct Loop {
  std::shared_ptr<const Items> items;
  size_t index = 0;
};
enum class Global { range, raise_exception, strftime_now, make_namespace, make_dict };

// Immutable, but for what a namespace holds. Namespaces and loops belong to the rendering, macros to the program.
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
  // Of decimal digits, perhaps behind a sign. Throws DataError for more digits than Python reads.
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
// Of two numbers, exactly, whatever their kinds.
std::partial_ordering order_of_numbers(const Value& a, const Value& b);
// a < b. Throws DataError for values that have no order.
bool less(const Value& a, const Value& b);
// Python's str() and repr(); str() of what is undefined is empty.
std::string str(const Value& value);
MarkedText marked_str(const Value& value);
std::string repr(const Value& value);
// A float as Python prints it.
std::string float_text(double number);
// What visiting the whole value takes, in units of eight bytes of text or one value.
uint64_t weight_of(const Value& value);
// Whether the value is a number (a boolean counts as one), and which: of large integers the nearest float.
bool is_number(const Value& value);
double number_of(const Value& value);
// An integer or a boolean. Throws DataError for anything else; `what` says what it is for.
int64_t integer_of(const Value& value, std::string_view what);
bool is_integer(const Value& value);  // no boolean
// The entry of a dict, or null.
const Value* find(const Entries& entries, std::string_view key);
const Value* find(const Entries& entries, const Value& key);
// Sets the entry of a key, in its place where there is one. Throws DataError for a key that Python cannot hash.
void set_entry(Entries& entries, Value key, Value value);
// What a for loop visits: items, keys of a dict, characters of a string; nothing of what is undefined. Throws
// DataError.
Items items_of(const Value& value);
// Throws DataError.
int64_t length_of(const Value& value);

struct JsonStyle {
  std::optional<std::string> indent = {};  // of each level; nothing: one line
  bool sort_keys = false, ascii = false;
  std::optional<std::pair<std::string, std::string>> separators = {};  // of items, and behind keys
};
// As Python's json.dumps() writes it. Throws DataError.
MarkedText marked_json(const Value& value, const JsonStyle& style = {});
std::string to_json(const Value& value);
// Throws DataError for text that is not JSON or nested deeper than 64; `what` names it.
Value from_json(std::string_view text, std::string_view what);
// The same value, all texts of which count as given rather than as the template's own.
Value given(const Value& value);

// Characters of UTF-8 text.
int64_t characters(std::string_view text);
// The byte at which character `index` begins, or the text's size. O(index).
size_t byte_of(std::string_view text, int64_t index);

}  // namespace witan::jinja
