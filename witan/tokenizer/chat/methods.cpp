#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "witan/tokenizer/chat/builtins.h"
#include "witan/tokenizer/chat/strings.h"

namespace witan::jinja {
namespace {

using StringMethod = std::function<Value(const MarkedText& text, const Arguments& arguments, Work& work)>;

const MarkedText& text_argument(const Arguments& arguments, size_t place, std::string_view name) {
  const Value* value = arguments.find(place, name);
  require<DataError>(value && value->string(), "the argument ", name, " must be a string",
                     value ? cat(", but is ", type_name(*value)) : "");
  return *value->marked();
}

std::optional<std::string_view> optional_text(const Arguments& arguments, size_t place, std::string_view name) {
  const Value* value = arguments.find(place, name);
  if (!value || value->is_none()) return std::nullopt;
  return text_argument(arguments, place, name).bytes;
}

StringMethod stripping(Ends ends) {
  return [ends](const MarkedText& text, const Arguments& arguments, Work&) {
    arguments.check("strip", {"chars"});
    return Value::text(text.part(strip(text.bytes, ends, optional_text(arguments, 0, "chars"))));
  };
}

Value parts_of(const MarkedText& text, const std::vector<std::string_view>& views, Work& work, bool tuple = false) {
  work.take(views.size() * 4);
  Items parts;
  for (const std::string_view view : views) parts.push_back(Value::text(text.part(view)));
  return Value::list(std::move(parts), tuple);
}

StringMethod splitting(bool from_right) {
  return [from_right](const MarkedText& text, const Arguments& arguments, Work& work) {
    arguments.check("split", {"sep", "maxsplit"});
    const auto separator = optional_text(arguments, 0, "sep");
    require<DataError>(!separator || !separator->empty(), "split: the separator is empty");
    const Value* most = arguments.find(1, "maxsplit");
    require<DataError>(separator || !from_right || !most, "rsplit without a separator is not supported");
    return parts_of(text, split(text.bytes, separator, most ? integer_of(*most, "maxsplit") : -1, from_right), work);
  };
}

// Splits into the text before the separator, the separator, and the text after it.
StringMethod partition(bool from_right) {
  return [from_right](const MarkedText& text, const Arguments& arguments, Work& work) {
    arguments.check("partition", {"sep"});
    const std::string_view all = text.bytes, separator = text_argument(arguments, 0, "sep").bytes;
    require<DataError>(!separator.empty(), "partition: the separator is empty");
    const size_t at = from_right ? all.rfind(separator) : all.find(separator);
    const std::string_view none = all.substr(0, 0);
    if (at == all.npos)
      return parts_of(text, from_right ? std::vector{none, none, all} : std::vector{all, none, none}, work, true);
    return parts_of(text, {all.substr(0, at), all.substr(at, separator.size()), all.substr(at + separator.size())},
                    work, true);
  };
}

StringMethod affix(bool at_end) {
  return [at_end](const MarkedText& text, const Arguments& arguments, Work&) {
    arguments.check(at_end ? "endswith" : "startswith", {"prefix"});
    const auto fits = [&](const Value& one) {
      require<DataError>(one.string() != nullptr, "startswith and endswith take strings, not ", type_name(one));
      return at_end ? text.bytes.ends_with(*one.string()) : text.bytes.starts_with(*one.string());
    };
    require<DataError>(!arguments.values.empty(), "startswith and endswith take an argument");
    const Value& what = arguments.values[0];
    if (!what.sequence()) return Value::boolean(fits(what));
    return Value::boolean(std::ranges::any_of(*what.sequence()->items, fits));
  };
}

StringMethod without_affix(bool at_end) {
  return [at_end](const MarkedText& text, const Arguments& arguments, Work&) {
    arguments.check(at_end ? "removesuffix" : "removeprefix", {"prefix"});
    const std::string_view affix = text_argument(arguments, 0, "prefix").bytes;
    std::string_view left = text.bytes;
    if (at_end && left.ends_with(affix)) left.remove_suffix(affix.size());
    if (!at_end && left.starts_with(affix)) left.remove_prefix(affix.size());
    return Value::text(text.part(left));
  };
}

StringMethod changing(std::string (*change)(std::string_view), const char* name) {
  return [change, name](const MarkedText& text, const Arguments& arguments, Work& work) {
    arguments.check(name, {});
    work.take(text.bytes.size());
    return Value::text(text.remade(change(text.bytes)));
  };
}

StringMethod finding(bool from_right, bool must) {
  return [from_right, must](const MarkedText& text, const Arguments& arguments, Work&) {
    arguments.check("find", {"sub"});
    const std::string& part = text_argument(arguments, 0, "sub").bytes;
    const size_t at = from_right ? text.bytes.rfind(part) : text.bytes.find(part);
    require<DataError>(!must || at != std::string::npos, "index: the text is not in the string");
    return Value::integer(at == std::string::npos ? -1 : characters(std::string_view(text.bytes).substr(0, at)));
  };
}

// ljust, rjust and zfill.
StringMethod filling(const char* name, bool at_end, bool zeros) {
  return [name, at_end, zeros](const MarkedText& text, const Arguments& arguments, Work& work) {
    arguments.check(name, {"width", "fillchar"});
    const Value* width = arguments.find(0, "width");
    require<DataError>(width != nullptr, name, " takes a width");
    const std::string fill = zeros ? "0" : std::string(optional_text(arguments, 1, "fillchar").value_or(" "));
    require<DataError>(characters(fill) == 1, name, ": the fill must be one character");
    const int64_t gap = std::max<int64_t>(0, integer_of(*width, "the width") - characters(text.bytes));
    work.take(static_cast<uint64_t>(gap));
    std::string padding;
    for (int64_t i = 0; i < gap; ++i) padding += fill;
    const bool sign = zeros && (text.bytes.starts_with('-') || text.bytes.starts_with('+'));
    MarkedText made{{}, {}, text.markup};
    if (at_end) made.append(text);
    if (sign) made.append(text, 0, 1);
    made.append(padding);
    if (!at_end) made.append(text, sign ? 1 : 0, text.bytes.size() - (sign ? 1 : 0));
    return Value::text(std::move(made));
  };
}

// ASCII only: other digits and letters are refused rather than guessed.
StringMethod consists_of(bool (*belongs)(char), const char* name) {
  return [belongs, name](const MarkedText& text, const Arguments& arguments, Work&) {
    arguments.check(name, {});
    require<DataError>(std::ranges::all_of(text.bytes, [](char c) { return static_cast<signed char>(c) >= 0; }), name,
                       "() is supported for ASCII alone");
    return Value::boolean(!text.bytes.empty() && std::ranges::all_of(text.bytes, belongs));
  };
}

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

Value text_replaced(const MarkedText& text, const Arguments& arguments, Work& work) {
  arguments.check("replace", {"old", "new", "count"});
  const std::string& old = text_argument(arguments, 0, "old").bytes;
  const MarkedText& with = text_argument(arguments, 1, "new");
  require<DataError>(!text.markup, "the method replace of markup (safe, escape) is not supported");
  const Value* most = arguments.find(2, "count");
  work.take(static_cast<uint64_t>(count_of(text.bytes, old)) * (1 + with.bytes.size() / 8));
  return Value::text(replace_all(text, old, with, most ? integer_of(*most, "count") : -1));
}

Value text_joined(const MarkedText& text, const Arguments& arguments, Work& work) {
  arguments.check("join", {"iterable"});
  require<DataError>(arguments.values.size() == 1, "join takes one list");
  charge_items(arguments.values[0], work);
  MarkedText out{{}, {}, text.markup};
  bool first = true;
  for (const Value& item : items_of(arguments.values[0])) {
    require<DataError>(item.string() != nullptr, "join takes strings, not ", type_name(item));
    work.take(1 + text.bytes.size() / 8);
    if (!std::exchange(first, false)) out.append(text);
    out.append(text.markup ? escaped(*item.marked()) : *item.marked());
  }
  return Value::text(std::move(out));
}

Value lines_of(const MarkedText& text, const Arguments& arguments, Work& work) {
  arguments.check("splitlines", {"keepends"});
  const Value* keep = arguments.find(0, "keepends");
  require<DataError>(!keep || !truth(*keep), "splitlines with keepends is not supported");
  return parts_of(text, split_lines(text.bytes), work);
}

const std::map<std::string_view, StringMethod>& string_methods() {
  static const std::map<std::string_view, StringMethod> methods = {
      {"strip", stripping(Ends::both)},
      {"lstrip", stripping(Ends::left)},
      {"rstrip", stripping(Ends::right)},
      {"split", splitting(false)},
      {"rsplit", splitting(true)},
      {"splitlines", lines_of},
      {"startswith", affix(false)},
      {"endswith", affix(true)},
      {"removeprefix", without_affix(false)},
      {"removesuffix", without_affix(true)},
      {"replace", text_replaced},
      {"join", text_joined},
      {"upper", changing(upper, "upper")},
      {"lower", changing(lower, "lower")},
      {"capitalize", changing(capitalize, "capitalize")},
      {"title", changing(title, "title")},
      {"swapcase", changing(swap_case, "swapcase")},
      {"partition", partition(false)},
      {"rpartition", partition(true)},
      {"ljust", filling("ljust", true, false)},
      {"rjust", filling("rjust", false, false)},
      {"zfill", filling("zfill", false, true)},
      {"format", brace_format},
      {"find", finding(false, false)},
      {"rfind", finding(true, false)},
      {"index", finding(false, true)},
      {"rindex", finding(true, true)},
      {"count",
       [](const MarkedText& text, const Arguments& arguments, Work&) {
         arguments.check("count", {"sub"});
         return Value::integer(count_of(text.bytes, text_argument(arguments, 0, "sub").bytes));
       }},
      {"isdigit", consists_of(is_ascii_digit, "isdigit")},
      {"isalpha", consists_of(is_ascii_letter, "isalpha")},
      {"isalnum", consists_of([](char c) { return is_ascii_digit(c) || is_ascii_letter(c); }, "isalnum")},
  };
  return methods;
}

constexpr std::array<std::string_view, 15> kOtherStringMethods = {
    "casefold", "center",  "encode",    "expandtabs", "format_map", "isascii",   "islower",    "isspace",
    "istitle",  "isupper", "isnumeric", "isdecimal",  "maketrans",  "translate", "isprintable"};
constexpr std::array<std::string_view, 11> kDictMethods = {
    "items", "keys", "values", "get", "copy", "clear", "pop", "popitem", "setdefault", "update", "fromkeys"};
constexpr std::array<std::string_view, 11> kListMethods = {"append", "clear",  "copy", "count",   "extend", "index",
                                                           "insert", "remove", "pop",  "reverse", "sort"};

bool among(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Value call_dict(const Entries& entries, const std::string& name, const Arguments& arguments) {
  Items items;
  if (name == "get") {
    arguments.check("get", {"key", "default"});
    require<DataError>(!arguments.values.empty(), "get takes a key");
    const Value* found = find(entries, arguments.values[0]);
    const Value* other = arguments.find(1, "default");
    return found ? *found : other ? *other : Value::none();
  }
  arguments.check(name, {});
  if (name == "copy") return Value::dict(entries);
  require<DataError>(name == "items" || name == "keys" || name == "values", "the method ", name,
                     " of a dict is not supported: templates cannot change values");
  for (const auto& [key, value] : entries) {
    if (name == "items")
      items.push_back(Value::list({key, value}, true));
    else
      items.push_back(name == "keys" ? key : value);
  }
  return Value::view(std::move(items), "dict_" + name);
}

Value call_list(const Items& items, const std::string& name, const Arguments& arguments) {
  require<DataError>(name == "index" || name == "count" || name == "copy", "the method ", name,
                     " of a list is not supported: templates cannot change values");
  if (name == "copy") return Value::list(items);
  arguments.check(name, {"value"});
  require<DataError>(arguments.values.size() == 1, name, " takes one argument");
  const auto same = [&](const Value& item) { return equal(item, arguments.values[0]); };
  if (name == "count") return Value::integer(std::ranges::count_if(items, same));
  const auto found = std::ranges::find_if(items, same);
  require<DataError>(found != items.end(), "index: the value is not in the list");
  return Value::integer(found - items.begin());
}

Value call_loop(const Loop& loop, const std::string& name, const Arguments& arguments) {
  require<DataError>(name == "cycle", "the method ", name, " of loop is not supported");
  require<DataError>(!arguments.values.empty() && arguments.named.empty(), "loop.cycle takes values");
  return arguments.values[loop.index % arguments.values.size()];
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.string()) return string_methods().contains(name) || among(kOtherStringMethods, name);
  if (value.entries()) return among(kDictMethods, name);
  if (value.sequence()) return !value.sequence()->view && among(kListMethods, name);
  return value.as<const Loop*>() && (name == "cycle" || name == "changed");
}

Value call_method(const Value& value, const std::string& name, const Arguments& arguments, Work& work) {
  work.take(1 + weight_of(value) + arguments.weight());
  if (const MarkedText* text = value.marked()) {
    const auto method = string_methods().find(name);
    require<DataError>(method != string_methods().end(), "the method ", name, " of a string is not supported");
    return method->second(*text, arguments, work);
  }
  if (const Entries* entries = value.entries()) return call_dict(*entries, name, arguments);
  if (const Sequence* sequence = value.sequence()) return call_list(*sequence->items, name, arguments);
  return call_loop(**value.as<const Loop*>(), name, arguments);
}

}  // namespace witan::jinja
