#include "witan/tokenizer/chat/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "witan/tokenizer/chat/access.h"
#include "witan/tokenizer/chat/strings.h"
#include "witan/tokenizer/chat/value_tests.h"

namespace witan::jinja {
namespace {

using Filter = std::function<Value(const Value& input, const Arguments& arguments, Work& work)>;

std::string text_or(const Value* value, const char* otherwise) {
  return value ? str(*value) : otherwise;
}

bool flag(const Value* value) {
  return value && truth(*value);
}

const Value& needed(const Arguments& arguments, size_t place, const char* name, const char* filter) {
  const Value* value = arguments.find(place, name);
  require<DataError>(value != nullptr, filter, " needs the argument ", name);
  return *value;
}

// ---- of text

Filter text_filter(std::string (*change)(std::string_view), const char* name) {
  return [change, name](const Value& input, const Arguments& arguments, Work&) {
    arguments.check(name, {});
    return Value::text(change(str(input)));
  };
}

Value trimmed(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("trim", {"chars"});
  const Value* among = arguments.find(0, "chars");
  const std::string text = str(input), characters = text_or(among, "");
  const bool given = among && !among->is_none();
  return Value::text(
      std::string(strip(text, Ends::both, given ? std::optional<std::string_view>(characters) : std::nullopt)));
}

Value replaced(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("replace", {"old", "new", "count"});
  const std::string text = str(input), old = str(needed(arguments, 0, "old", "replace")),
                    with = str(needed(arguments, 1, "new", "replace"));
  const Value* most = arguments.find(2, "count");
  work.take(static_cast<uint64_t>(count_of(text, old)) * (1 + with.size() / 8));
  return Value::text(replace_all(text, old, with, most && !most->is_none() ? integer_of(*most, "count") : -1));
}

Value indented(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("indent", {"width", "first", "blank"});
  const Value* width = arguments.find(0, "width");
  constexpr int64_t kMostWidth = 256;
  const int64_t spaces = width && !width->string() ? integer_of(*width, "width") : 4;
  require<DataError>(spaces >= 0 && spaces <= kMostWidth, "indent: the width must be within 0 and ", kMostWidth);
  const std::string indent =
      width && width->string() ? *width->string() : std::string(static_cast<size_t>(spaces), ' ');
  const std::string text = str(input) + "\n";
  const auto lines = split_lines(text);
  work.take(lines.size() * (1 + indent.size() / 8));
  std::string out = flag(arguments.find(1, "first")) ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (!lines[i].empty() || flag(arguments.find(2, "blank")))) out += indent;
    out += lines[i];
  }
  return Value::text(std::move(out));
}

Value as_json(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  const Value* separators = arguments.find(2, "separators");
  require<DataError>(!separators || separators->is_none(), "tojson with separators is not supported");
  JsonStyle style;
  style.ascii = flag(arguments.find(0, "ensure_ascii"));
  style.sort_keys = flag(arguments.find(3, "sort_keys"));
  if (const Value* indent = arguments.find(1, "indent"); indent && !indent->is_none())
    style.indent = integer_of(*indent, "indent");
  constexpr int64_t kMostIndent = 32;
  require<DataError>(style.indent <= kMostIndent, "tojson: indent must be at most ", kMostIndent);
  const auto* sequence = input.sequence();
  const int depth = sequence ? sequence->depth : input.as<Mapping>() ? input.as<Mapping>()->depth : 0;
  if (style.indent > 0) work.take(weight_of(input) * static_cast<uint64_t>(1 + depth * style.indent / 8));
  return Value::text(to_json(input, style));
}

// ---- of numbers

Value as_integer(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("int", {"default"});
  const Value* otherwise = arguments.find(0, "default");
  const Value fallback = otherwise ? *otherwise : Value::integer(0);
  if (const double* number = input.as<double>()) {
    constexpr double kMost = 9.2e18;
    return std::abs(*number) < kMost ? Value::integer(static_cast<int64_t>(*number)) : fallback;
  }
  if (is_number(input)) return Value::integer(integer_of(input, "int"));
  if (!input.string()) return fallback;
  std::string_view text = strip(*input.string(), Ends::both);
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  const auto whole = std::from_chars(text.data(), text.data() + text.size(), value);
  if (whole.ec == std::errc() && whole.ptr == text.data() + text.size()) return Value::integer(value);
  double real = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), real);
  constexpr double kMost = 9.2e18;
  const bool good = read.ec == std::errc() && read.ptr == text.data() + text.size() && std::abs(real) < kMost;
  return good ? Value::integer(static_cast<int64_t>(real)) : fallback;
}

Value as_float(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("float", {"default"});
  const Value* otherwise = arguments.find(0, "default");
  if (is_number(input)) return Value::Variant(number_of(input));
  const std::string text = str(input);
  const std::string_view digits = strip(text, Ends::both);
  double real = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), real);
  if (read.ec == std::errc() && read.ptr == digits.data() + digits.size()) return Value::Variant(real);
  return otherwise ? *otherwise : Value::Variant(0.0);
}

// ---- of lists

// `a.b` is the item b of the item a.
Value by_path(const Value& item, const Value& path) {
  if (!path.string()) return item_of(item, path);
  Value value = item;
  for (const auto part : split(*path.string(), ".", -1, false)) {
    if (value.is_undefined()) return value;
    value = item_of(value, Value::text(std::string(part)));
  }
  return value;
}

Value joined(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("join", {"d", "attribute"});
  const std::string between = text_or(arguments.find(0, "d"), "");
  const Value* attribute = arguments.find(1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(input)) {
    work.take(1 + between.size() / 8);
    if (!first) out += between;
    first = false;
    out += str(attribute ? by_path(item, *attribute) : item);
  }
  return Value::text(std::move(out));
}

Value end_of(const Value& input, bool last) {
  const Items items = items_of(input);
  if (items.empty()) return Value::undefined("the first item of an empty list");
  return last ? items.back() : items.front();
}

Value reversed(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("reverse", {});
  Items items = items_of(input);
  std::ranges::reverse(items);
  if (!input.string()) return Value::list(std::move(items));
  std::string out;
  for (const Value& item : items) out += *item.string();
  return Value::text(std::move(out));
}

Value unique(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("unique", {"case_sensitive"});
  const bool exact = flag(arguments.find(0, "case_sensitive"));
  const auto key = [&](const Value& item) {
    return item.string() && !exact ? Value::text(lower(*item.string())) : item;
  };
  Items kept, keys;
  for (const Value& item : items_of(input)) {
    const Value own = key(item);
    work.take(1 + keys.size() * (1 + weight_of(own)));
    if (std::ranges::any_of(keys, [&](const Value& other) { return equal(own, other); })) continue;
    keys.push_back(own);
    kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

Value sorted(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("sort", {"reverse", "case_sensitive", "attribute"});
  const bool exact = flag(arguments.find(1, "case_sensitive")), down = flag(arguments.find(0, "reverse"));
  const Value* attribute = arguments.find(2, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items_of(input)) {
    const Value own = attribute ? by_path(item, *attribute) : item;
    keyed.emplace_back(own.string() && !exact ? Value::text(lower(*own.string())) : own, item);
  }
  work.take(weight_of(input) * 64);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return down ? less(b.first, a.first) : less(a.first, b.first);
  });
  Items items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

Value pairs_of(const Value& input) {
  Items pairs;
  if (input.is_undefined()) return Value::list({});
  require<DataError>(input.entries() != nullptr, "items takes a dict, not ", type_name(input));
  for (const auto& [key, value] : *input.entries()) pairs.push_back(Value::list({Value::text(key), value}, true));
  return Value::list(std::move(pairs));
}

Value sorted_pairs(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("dictsort", {"case_sensitive"});
  Arguments by_key{
      {Value::boolean(false), Value::boolean(flag(arguments.find(0, "case_sensitive"))), Value::integer(0)}, {}};
  return sorted(pairs_of(input), by_key, work);
}

// The arguments behind the first `count`.
Arguments behind(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.values.erase(rest.values.begin(),
                    rest.values.begin() + static_cast<ptrdiff_t>(std::min(count, rest.values.size())));
  return rest;
}

std::string name_argument(const Arguments& arguments, size_t place, const char* what) {
  require<DataError>(place < arguments.values.size() && arguments.values[place].string(), what, " takes the name of ",
                     place == 0 && std::string_view(what) != "select" ? "an attribute or filter" : "a test");
  return *arguments.values[place].string();
}

Value mapped(const Value& input, const Arguments& arguments, Work& work) {
  Items items;
  if (const Value* attribute = arguments.find("attribute")) {
    const Value* otherwise = arguments.find("default");
    for (const Value& item : items_of(input)) {
      const Value value = by_path(item, *attribute);
      items.push_back(value.is_undefined() && otherwise ? *otherwise : value);
    }
    return Value::list(std::move(items));
  }
  const std::string name = name_argument(arguments, 0, "map");
  require<DataError>(is_filter(name), "map: the filter ", clipped(name), " is not supported");
  for (const Value& item : items_of(input)) items.push_back(apply_filter(name, item, behind(arguments, 1), work));
  return Value::list(std::move(items));
}

// select, reject, selectattr and rejectattr.
Filter choosing(bool by_attribute, bool wanted, const char* filter) {
  return [=](const Value& input, const Arguments& arguments, Work& work) {
    const size_t test_at = by_attribute ? 1 : 0;
    require<DataError>(arguments.named.empty(), filter, " takes no arguments with names");
    require<DataError>(!by_attribute || !arguments.values.empty(), filter, " takes the name of an attribute");
    const bool tested = arguments.values.size() > test_at;
    const std::string name = tested ? name_argument(arguments, test_at, "select") : "";
    require<DataError>(!tested || is_test(name), filter, ": the test ", clipped(name), " is not supported");
    const Arguments rest = behind(arguments, test_at + 1);
    Items chosen;
    for (const Value& item : items_of(input)) {
      const Value value = by_attribute ? by_path(item, arguments.values[0]) : item;
      work.take(1);
      const bool fits = tested ? apply_test(name, value, rest, work) : truth(value);
      if (fits == wanted) chosen.push_back(item);
    }
    return Value::list(std::move(chosen));
  };
}

Value counted(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("length", {});
  return Value::integer(length_of(input));
}

Value defaulted(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("default", {"default_value", "boolean"});
  const Value* otherwise = arguments.find(0, "default_value");
  const bool missing = input.is_undefined() || (flag(arguments.find(1, "boolean")) && !truth(input));
  return !missing ? input : otherwise ? *otherwise : Value::text("");
}

const std::map<std::string_view, Filter>& filters() {
  using A = const Arguments&;
  using V = const Value&;
  static const std::map<std::string_view, Filter> all = {
      {"trim", trimmed},
      {"tojson", as_json},
      {"length", counted},
      {"count", counted},
      {"default", defaulted},
      {"d", defaulted},
      {"upper", text_filter(upper, "upper")},
      {"lower", text_filter(lower, "lower")},
      {"title", text_filter(title, "title")},
      {"capitalize", text_filter(capitalize, "capitalize")},
      {"join", joined},
      {"replace", replaced},
      {"first", [](V input, A, Work&) { return end_of(input, false); }},
      {"last", [](V input, A, Work&) { return end_of(input, true); }},
      {"selectattr", choosing(true, true, "selectattr")},
      {"rejectattr", choosing(true, false, "rejectattr")},
      {"select", choosing(false, true, "select")},
      {"reject", choosing(false, false, "reject")},
      {"map", mapped},
      {"list", [](V input, A, Work&) { return Value::list(items_of(input)); }},
      {"items", [](V input, A, Work&) { return pairs_of(input); }},
      {"dictsort", sorted_pairs},
      {"sort", sorted},
      {"unique", unique},
      {"reverse", reversed},
      {"string", [](V input, A, Work&) { return Value::text(str(input)); }},
      {"safe", [](V input, A, Work&) { return Value::text(str(input)); }},
      {"int", as_integer},
      {"float", as_float},
      {"indent", indented},
  };
  return all;
}

}  // namespace

bool is_filter(std::string_view name) {
  return filters().contains(name);
}

std::vector<std::string> filter_names() {
  std::vector<std::string> names;
  for (const auto& [name, filter] : filters()) names.emplace_back(name);
  return names;
}

Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Work& work) {
  work.take(1 + weight_of(input) + arguments.weight());
  return filters().find(name)->second(input, arguments, work);
}

}  // namespace witan::jinja
