#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "witan/tokenizer/chat/builtins.h"
#include "witan/tokenizer/chat/strings.h"

namespace witan::jinja {
namespace {

using Filter = std::function<Value(const Value& input, const Arguments& arguments, Work& work)>;

bool flag(const Value* value) {
  return value && truth(*value);
}

const Value& needed(const Arguments& arguments, size_t place, const char* name, const char* filter) {
  const Value* value = arguments.find(place, name);
  require<DataError>(value != nullptr, filter, " needs the argument ", name);
  return *value;
}

// ---- filters of text

enum class Markup { stays, goes };

Filter text_filter(std::string (*change)(std::string_view), const char* name, Markup markup) {
  return [change, name, markup](const Value& input, const Arguments& arguments, Work& work) {
    arguments.check(name, {});
    const MarkedText text = marked_str(input);
    work.take(text.bytes.size());
    MarkedText made = text.remade(change(text.bytes));
    made.markup = made.markup && markup == Markup::stays;
    return Value::text(std::move(made));
  };
}

Value trimmed(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("trim", {"chars"});
  const Value* among = arguments.find(0, "chars");
  const MarkedText text = marked_str(input);
  const std::string characters = among ? str(*among) : "";
  const bool given = among && !among->is_none();
  return Value::text(
      text.part(strip(text.bytes, Ends::both, given ? std::optional<std::string_view>(characters) : std::nullopt)));
}

Value replaced(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("replace", {"old", "new", "count"});
  MarkedText text = marked_str(input);
  text.markup = false;
  const std::string old = str(needed(arguments, 0, "old", "replace"));
  const MarkedText with = marked_str(needed(arguments, 1, "new", "replace"));
  const Value* most = arguments.find(2, "count");
  work.take(static_cast<uint64_t>(count_of(text.bytes, old)) * (1 + with.bytes.size() / 8));
  return Value::text(replace_all(text, old, with, most && !most->is_none() ? integer_of(*most, "count") : -1));
}

Value indented(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("indent", {"width", "first", "blank"});
  const Value* width = arguments.find(0, "width");
  constexpr int64_t kMostWidth = 256;
  const int64_t spaces = width && !width->string() ? integer_of(*width, "width") : 4;
  require<DataError>(spaces >= 0 && spaces <= kMostWidth, "indent: the width must be within 0 and ", kMostWidth);
  const MarkedText indent =
      width && width->string() ? *width->marked() : MarkedText{std::string(static_cast<size_t>(spaces), ' ')};
  MarkedText text = marked_str(input);
  text.append("\n");
  const auto lines = split_lines(text.bytes);
  work.take(lines.size() * (1 + indent.bytes.size() / 8));
  MarkedText out{{}, {}, text.markup};
  if (flag(arguments.find(1, "first"))) out.append(indent);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    if (i > 0 && (!lines[i].empty() || flag(arguments.find(2, "blank")))) out.append(indent);
    out.append(text.part(lines[i]));
  }
  return Value::text(std::move(out));
}

Value as_json(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag(arguments.find(0, "ensure_ascii"));
  style.sort_keys = flag(arguments.find(3, "sort_keys"));
  constexpr int64_t kMostIndent = 32;
  if (const Value* indent = arguments.find(1, "indent"); indent && !indent->is_none()) {
    const int64_t spaces = indent->string() ? length_of(*indent) : integer_of(*indent, "indent");
    require<DataError>(spaces <= kMostIndent, "tojson: indent must be at most ", kMostIndent);
    style.indent =
        indent->string() ? *indent->string() : std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
  }
  if (const Value* given = arguments.find(2, "separators"); given && !given->is_none()) {
    const Sequence* pair = given->sequence();
    require<DataError>(pair && pair->items->size() == 2 && (*pair->items)[0].string() && (*pair->items)[1].string() &&
                           weight_of(*given) <= 16,
                       "tojson: separators must be two short strings: between items, and after keys");
    style.separators = {*(*pair->items)[0].string(), *(*pair->items)[1].string()};
  }
  const auto* sequence = input.sequence();
  const size_t depth = static_cast<size_t>(sequence              ? sequence->depth
                                           : input.as<Mapping>() ? input.as<Mapping>()->depth
                                                                 : 0);
  work.take(weight_of(input) * 4);
  if (style.indent) work.take(weight_of(input) * (1 + depth * style.indent->size() / 8));
  if (style.separators) work.take(weight_of(input) * 16);
  if (style.sort_keys) work.take(weight_of(input) * 16);
  return Value::text(marked_json(input, style));
}

Filter escaping(bool again) {
  return [again](const Value& input, const Arguments& arguments, Work& work) {
    arguments.check("escape", {});
    MarkedText text = marked_str(input);
    work.take(text.bytes.size());
    text.markup = text.markup && !again;
    return Value::text(escaped(text));
  };
}

Value as_markup(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("safe", {});
  MarkedText text = marked_str(input);
  text.markup = true;
  return Value::text(std::move(text));
}

// ---- filters of numbers

// Removes the underscores that Python allows between the digits of a number without a sign. Returns nullopt if
// malformed.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) { return at < text.size() && std::isxdigit(static_cast<uint8_t>(text[at])); };
    if (text[i] != '_')
      digits += text[i];
    else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1))
      return std::nullopt;
  }
  return digits;
}

// Python's int(text, base), for ASCII.
std::optional<Value> read_integer(std::string_view text, int64_t base) {
  text = strip(text, Ends::both);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && text.size() > 2 && text[0] == '0' && (text[1] | 32) == prefix[1]) {
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
  }
  const auto digits = without_underscores(text);
  if (!digits || digits->empty()) return std::nullopt;
  if (base == 10) {
    if (digits->find_first_not_of("0123456789") != digits->npos) return std::nullopt;
    return Value::integer((negative ? "-" : "") + *digits);
  }
  uint64_t number = 0;
  const auto read = std::from_chars(digits->data(), digits->data() + digits->size(), number, static_cast<int>(base));
  if (read.ptr != digits->data() + digits->size()) return std::nullopt;
  require<DataError>(read.ec == std::errc(), "int: a number of base ", base, " is beyond 64 bits");
  return Value::integer((negative ? "-" : "") + std::to_string(number));
}

// Python's float(text), for ASCII.
std::optional<double> read_real(std::string_view text) {
  text = strip(text, Ends::both);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const auto digits = without_underscores(text);
  if (!digits || digits->starts_with('-') || digits->find('(') != digits->npos) return std::nullopt;
  double real = 0;
  const auto read = std::from_chars(digits->data(), digits->data() + digits->size(), real);
  if (read.ec == std::errc::result_out_of_range) real = std::strtod(digits->c_str(), nullptr);
  if (digits->empty() || read.ec == std::errc::invalid_argument || read.ptr != digits->data() + digits->size())
    return std::nullopt;
  return negative ? -real : real;
}

std::optional<Value> whole(double real) {
  if (!std::isfinite(real)) return std::nullopt;
  return Value::integer(fmt::format("{:.0f}", std::trunc(real)));
}

Value as_integer(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("int", {"default", "base"});
  const Value *otherwise = arguments.find(0, "default"), *given = arguments.find(1, "base");
  const int64_t base = given ? integer_of(*given, "base") : 10;
  require<DataError>(base >= 2 && base <= 36, "int: the base must be within 2 and 36");
  std::optional<Value> number;
  if (input.as<double>())
    number = whole(number_of(input));
  else if (input.as<bool>())
    number = Value::integer(integer_of(input, "int"));
  else if (is_integer(input))
    number = input;
  else if (input.string())
    number = read_integer(*input.string(), base);
  if (!number && input.string())
    if (const auto real = read_real(*input.string())) number = whole(*real);
  return number ? *number : otherwise ? *otherwise : Value::integer(0);
}

Value as_float(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("float", {"default"});
  const Value* otherwise = arguments.find(0, "default");
  if (is_number(input)) return Value::Variant(number_of(input));
  if (const auto real = input.string() ? read_real(*input.string()) : std::nullopt) return Value::Variant(*real);
  return otherwise ? *otherwise : Value::Variant(0.0);
}

__extension__ typedef __int128 Wide;

// Python's round(): ties go to even.
Value round_integer(int64_t number, int64_t places) {
  if (places >= 0) return Value::integer(number);
  if (places < -18) return Value::integer(0);
  Wide unit = 1;
  for (int64_t i = 0; i > places; --i) unit *= 10;
  const Wide rest = ((number % unit) + unit) % unit, below = number - rest;
  const bool up = 2 * rest > unit || (2 * rest == unit && (below / unit) % 2 != 0);
  const Wide rounded = below + (up ? unit : 0);
  require<DataError>(rounded <= INT64_MAX && rounded >= INT64_MIN, "round: the result is beyond 64 bits");
  return Value::integer(static_cast<int64_t>(rounded));
}

Value rounded(const Value& input, const Arguments& arguments, Work&) {
  arguments.check("round", {"precision", "method"});
  require<DataError>(is_number(input), "round takes a number, not ", type_name(input));
  const Value *precision = arguments.find(0, "precision"), *given = arguments.find(1, "method");
  const int64_t places = precision ? integer_of(*precision, "precision") : 0;
  const std::string method = given ? str(*given) : "common";
  require<DataError>(method == "common" || method == "ceil" || method == "floor",
                     "round: the method must be common, ceil or floor");
  if (method == "common" && !input.as<double>()) return round_integer(integer_of(input, "the number"), places);
  require<DataError>(places >= 0 && places <= 300, "round: a precision of ", places, " is not supported for floats");
  const double number = number_of(input);
  require<DataError>(std::isfinite(number) || method == "common", "round: ", str(input),
                     " cannot be rounded to an integer");
  if (method == "common")
    return Value::Variant(std::isfinite(number) ? std::strtod(fmt::format("{:.{}f}", number, places).c_str(), nullptr)
                                                : number);
  const double unit = std::pow(10.0, static_cast<double>(places)), scaled = number * unit;
  return Value::Variant((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value absolute(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("abs", {});
  require<DataError>(is_number(input), "abs takes a number, not ", type_name(input));
  const bool negative = order_of_numbers(input, Value::integer(0)) < 0;
  return negative || input.as<bool>() || input.as<double>() ? apply_sign(negative ? "-" : "+", input, work) : input;
}

// ---- filters of lists

// `a.b` is the item b of the item a; `a.0` is its first item.
Value by_path(const Value& item, const Value& path) {
  if (!path.string()) return item_of(item, path);
  Value value = item;
  for (const auto part : split(*path.string(), ".", -1, false)) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (value.is_undefined()) return value;
    value = item_of(value, number ? Value::integer(part) : Value::text(std::string(part)));
  }
  return value;
}

// The key by which items are compared: the item or an attribute of it, in lower case unless case counts.
Value key_of(const Value& item, const Value* attribute, bool exact) {
  Value own = attribute && !attribute->is_none() ? by_path(item, *attribute) : item;
  return own.string() && !exact ? Value::text(lower(*own.string())) : own;
}

Value joined(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("join", {"d", "attribute"});
  const Value *given = arguments.find(0, "d"), *attribute = arguments.find(1, "attribute");
  const MarkedText between = given ? marked_str(*given) : MarkedText{};
  MarkedText out;
  bool first = true;
  for (const Value& item : items_of(input)) {
    work.take(1 + between.bytes.size() / 8);
    if (!std::exchange(first, false)) out.append(between);
    out.append(marked_str(attribute && !attribute->is_none() ? by_path(item, *attribute) : item));
  }
  return Value::text(std::move(out));
}

Value end_of(const Value& input, bool last) {
  const Items items = items_of(input);
  if (items.empty()) return Value::undefined("the first item of an empty list");
  return last ? items.back() : items.front();
}

Value reversed(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("reverse", {});
  if (input.string()) return slice_of(input, {}, {}, -1, work);
  Items items = items_of(input);
  std::ranges::reverse(items);
  return Value::list(std::move(items));
}

Value unique(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("unique", {"case_sensitive", "attribute"});
  const bool exact = flag(arguments.find(0, "case_sensitive"));
  Items kept, keys;
  for (const Value& item : items_of(input)) {
    const Value own = key_of(item, arguments.find(1, "attribute"), exact);
    work.take(1 + keys.size() * (1 + weight_of(own)));
    if (std::ranges::any_of(keys, [&](const Value& other) { return equal(own, other); })) continue;
    keys.push_back(own);
    kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

// `attribute` may name several attributes, separated by commas.
Items keys_of(const Value& item, const Value* attribute, bool exact) {
  if (!attribute || !attribute->string()) return {key_of(item, attribute, exact)};
  Items keys;
  for (const auto part : split(*attribute->string(), ",", -1, false)) {
    const Value one = Value::text(std::string(part));
    keys.push_back(key_of(item, &one, exact));
  }
  return keys;
}

Value sorted_by(const Value& input, const Value* attribute, bool exact, bool down, Work& work) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items_of(input)) keyed.emplace_back(Value::list(keys_of(item, attribute, exact)), item);
  work.take(weight_of(input) * 64);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return down ? less(b.first, a.first) : less(a.first, b.first);
  });
  Items items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

Value sorted(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("sort", {"reverse", "case_sensitive", "attribute"});
  return sorted_by(input, arguments.find(2, "attribute"), flag(arguments.find(1, "case_sensitive")),
                   flag(arguments.find(0, "reverse")), work);
}

Filter extreme(bool largest, const char* name) {
  return [largest, name](const Value& input, const Arguments& arguments, Work&) {
    arguments.check(name, {"case_sensitive", "attribute"});
    const Items items = items_of(input);
    if (items.empty()) return Value::undefined(cat(name, " of an empty list"));
    const auto key = [&](const Value& item) {
      return key_of(item, arguments.find(1, "attribute"), flag(arguments.find(0, "case_sensitive")));
    };
    const Value* best = &items[0];
    Value best_key = key(items[0]);
    for (const Value& item : std::span(items).subspan(1)) {
      Value own = key(item);
      if (!(largest ? less(best_key, own) : less(own, best_key))) continue;
      best = &item;
      best_key = std::move(own);
    }
    return *best;
  };
}

Value summed(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("sum", {"attribute", "start"});
  const Value *attribute = arguments.find(0, "attribute"), *start = arguments.find(1, "start");
  Value sum = start ? *start : Value::integer(0);
  require<DataError>(!sum.string(), "sum does not take strings: join does");
  for (const Value& item : items_of(input))
    sum = apply_arithmetic("+", sum, attribute && !attribute->is_none() ? by_path(item, *attribute) : item, work);
  return sum;
}

Value pairs_of(const Value& input) {
  Items pairs;
  if (input.is_undefined()) return Value::list({});
  require<DataError>(input.entries() != nullptr, "items takes a dict, not ", type_name(input));
  for (const auto& [key, value] : *input.entries()) pairs.push_back(Value::list({key, value}, true));
  return Value::list(std::move(pairs));
}

Value sorted_pairs(const Value& input, const Arguments& arguments, Work& work) {
  arguments.check("dictsort", {"case_sensitive", "by", "reverse"});
  const Value* by = arguments.find(1, "by");
  const std::string what = by ? str(*by) : "key";
  require<DataError>(what == "key" || what == "value", "dictsort: by must be key or value");
  const Value place = Value::integer(what == "key" ? 0 : 1);
  return sorted_by(pairs_of(input), &place, flag(arguments.find(0, "case_sensitive")),
                   flag(arguments.find(2, "reverse")), work);
}

// The arguments without the first `count` positional ones.
Arguments without_first(const Arguments& arguments, size_t count) {
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
  for (const Value& item : items_of(input))
    items.push_back(apply_filter(name, item, without_first(arguments, 1), work));
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
    const Arguments rest = without_first(arguments, test_at + 1);
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
      {"upper", text_filter(upper, "upper", Markup::stays)},
      {"lower", text_filter(lower, "lower", Markup::stays)},
      {"title", text_filter(filter_title, "title", Markup::goes)},
      {"capitalize", text_filter(capitalize, "capitalize", Markup::stays)},
      {"escape", escaping(false)},
      {"e", escaping(false)},
      {"forceescape", escaping(true)},
      {"safe", as_markup},
      {"round", rounded},
      {"abs", absolute},
      {"min", extreme(false, "min")},
      {"max", extreme(true, "max")},
      {"sum", summed},
      {"format",
       [](V input, A arguments, Work& work) {
         const bool named = !arguments.named.empty();
         require<DataError>(!named || arguments.values.empty(), "format takes values or names, not both");
         Entries entries;
         for (const auto& [name, value] : arguments.named) entries.emplace_back(name, value);
         return percent_format(marked_str(input),
                               named ? Value::dict(std::move(entries)) : Value::list(arguments.values, true), work);
       }},
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
      {"string",
       [](V input, A, Work& work) {
         if (!input.string()) work.take(weight_of(input) * 4);  // a container's repr() looks at every character
         return Value::text(marked_str(input));
       }},
      {"int", as_integer},
      {"float", as_float},
      {"indent", indented},
  };
  return all;
}

// Whether the filter makes a value of every character of a string.
bool takes_items(std::string_view name) {
  static const std::set<std::string_view> names = {"join",   "first",  "last", "selectattr", "rejectattr",
                                                   "select", "reject", "map",  "list",       "sort",
                                                   "unique", "min",    "max",  "sum"};
  return names.contains(name);
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
  if (takes_items(name)) charge_items(input, work);
  return filters().find(name)->second(input, arguments, work);
}

}  // namespace witan::jinja
