#include "witan/tokenizer/chat/methods.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "witan/tokenizer/chat/strings.h"

namespace witan::jinja {
namespace {

using StringMethod = std::function<Value(const std::string& text, const Arguments& arguments, Work& work)>;

const std::string& text_argument(const Arguments& arguments, size_t place, std::string_view name) {
  const Value* value = arguments.find(place, name);
  require<DataError>(value && value->string(), "the argument ", name, " must be a string",
                     value ? cat(", and is ", type_name(*value)) : "");
  return *value->string();
}

std::optional<std::string_view> optional_text(const Arguments& arguments, size_t place, std::string_view name) {
  const Value* value = arguments.find(place, name);
  if (!value || value->is_none()) return std::nullopt;
  return text_argument(arguments, place, name);
}

StringMethod stripping(Ends ends) {
  return [ends](const std::string& text, const Arguments& arguments, Work&) {
    arguments.check("strip", {"chars"});
    return Value::text(std::string(strip(text, ends, optional_text(arguments, 0, "chars"))));
  };
}

StringMethod splitting(bool from_right) {
  return [from_right](const std::string& text, const Arguments& arguments, Work&) {
    arguments.check("split", {"sep", "maxsplit"});
    const auto separator = optional_text(arguments, 0, "sep");
    require<DataError>(!separator || !separator->empty(), "split: the separator is empty");
    const Value* most = arguments.find(1, "maxsplit");
    require<DataError>(separator || !from_right || !most, "rsplit without a separator is not supported");
    Items parts;
    for (const auto part : split(text, separator, most ? integer_of(*most, "maxsplit") : -1, from_right))
      parts.push_back(Value::text(std::string(part)));
    return Value::list(std::move(parts));
  };
}

StringMethod affix(bool at_end) {
  return [at_end](const std::string& text, const Arguments& arguments, Work&) {
    arguments.check(at_end ? "endswith" : "startswith", {"prefix"});
    const auto fits = [&](const Value& one) {
      require<DataError>(one.string() != nullptr, "startswith and endswith take strings, not ", type_name(one));
      return at_end ? text.ends_with(*one.string()) : text.starts_with(*one.string());
    };
    require<DataError>(!arguments.values.empty(), "startswith and endswith take an argument");
    const Value& what = arguments.values[0];
    if (!what.sequence()) return Value::boolean(fits(what));
    return Value::boolean(std::ranges::any_of(*what.sequence()->items, fits));
  };
}

StringMethod without_affix(bool at_end) {
  return [at_end](const std::string& text, const Arguments& arguments, Work&) {
    arguments.check(at_end ? "removesuffix" : "removeprefix", {"prefix"});
    const std::string& affix = text_argument(arguments, 0, "prefix");
    if (at_end && text.ends_with(affix)) return Value::text(text.substr(0, text.size() - affix.size()));
    if (!at_end && text.starts_with(affix)) return Value::text(text.substr(affix.size()));
    return Value::text(text);
  };
}

StringMethod changing(std::string (*change)(std::string_view), const char* name) {
  return [change, name](const std::string& text, const Arguments& arguments, Work&) {
    arguments.check(name, {});
    return Value::text(change(text));
  };
}

StringMethod finding(bool from_right) {
  return [from_right](const std::string& text, const Arguments& arguments, Work&) {
    arguments.check("find", {"sub"});
    const std::string& part = text_argument(arguments, 0, "sub");
    const size_t at = from_right ? text.rfind(part) : text.find(part);
    return Value::integer(at == text.npos ? -1 : characters(std::string_view(text).substr(0, at)));
  };
}

// Of ASCII's characters alone: digits and letters elsewhere are refused rather than guessed.
StringMethod consists_of(bool (*belongs)(char), const char* name) {
  return [belongs, name](const std::string& text, const Arguments& arguments, Work&) {
    arguments.check(name, {});
    require<DataError>(std::ranges::all_of(text, [](char c) { return static_cast<signed char>(c) >= 0; }), name,
                       "() is supported for ASCII alone");
    return Value::boolean(!text.empty() && std::ranges::all_of(text, belongs));
  };
}

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

Value text_replaced(const std::string& text, const Arguments& arguments, Work& work) {
  arguments.check("replace", {"old", "new", "count"});
  const std::string &old = text_argument(arguments, 0, "old"), &with = text_argument(arguments, 1, "new");
  const Value* most = arguments.find(2, "count");
  work.take(static_cast<uint64_t>(count_of(text, old)) * (1 + with.size() / 8));
  return Value::text(replace_all(text, old, with, most ? integer_of(*most, "count") : -1));
}

Value text_joined(const std::string& text, const Arguments& arguments, Work& work) {
  arguments.check("join", {"iterable"});
  require<DataError>(arguments.values.size() == 1, "join takes one list");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(arguments.values[0])) {
    require<DataError>(item.string() != nullptr, "join takes strings, not ", type_name(item));
    work.take(1 + text.size() / 8);
    if (!first) out += text;
    first = false;
    out += *item.string();
  }
  return Value::text(std::move(out));
}

Value lines_of(const std::string& text, const Arguments& arguments, Work&) {
  arguments.check("splitlines", {});
  Items lines;
  for (const auto line : split_lines(text)) lines.push_back(Value::text(std::string(line)));
  return Value::list(std::move(lines));
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
      {"find", finding(false)},
      {"rfind", finding(true)},
      {"count",
       [](const std::string& text, const Arguments& arguments, Work&) {
         arguments.check("count", {"sub"});
         return Value::integer(count_of(text, text_argument(arguments, 0, "sub")));
       }},
      {"isdigit", consists_of(is_ascii_digit, "isdigit")},
      {"isalpha", consists_of(is_ascii_letter, "isalpha")},
      {"isalnum", consists_of([](char c) { return is_ascii_digit(c) || is_ascii_letter(c); }, "isalnum")},
  };
  return methods;
}

constexpr std::array<std::string_view, 24> kOtherStringMethods = {
    "casefold",  "center",    "encode",  "expandtabs", "format",    "format_map", "index", "isascii",
    "islower",   "isspace",   "istitle", "isupper",    "isnumeric", "isdecimal",  "ljust", "rjust",
    "maketrans", "partition", "rindex",  "rpartition", "swapcase",  "translate",  "zfill", "isprintable"};
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
    const std::string* key = arguments.values[0].string();
    const Value* found = key ? find(entries, *key) : nullptr;
    const Value* other = arguments.find(1, "default");
    return found ? *found : other ? *other : Value::none();
  }
  arguments.check(name, {});
  if (name == "copy") return Value::dict(entries);
  require<DataError>(name == "items" || name == "keys" || name == "values", "the method ", name,
                     " of a dict is not supported: templates cannot change values");
  for (const auto& [key, value] : entries) {
    if (name == "items")
      items.push_back(Value::list({Value::text(key), value}, true));
    else
      items.push_back(name == "keys" ? Value::text(key) : value);
  }
  return Value::list(std::move(items));
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
  if (value.sequence()) return among(kListMethods, name);
  return value.as<const Loop*>() && (name == "cycle" || name == "changed");
}

Value call_method(const Value& value, const std::string& name, const Arguments& arguments, Work& work) {
  work.take(1 + weight_of(value) + arguments.weight());
  if (const std::string* text = value.string()) {
    const auto method = string_methods().find(name);
    require<DataError>(method != string_methods().end(), "the method ", name, " of a string is not supported");
    return method->second(*text, arguments, work);
  }
  if (const Entries* entries = value.entries()) return call_dict(*entries, name, arguments);
  if (const Sequence* sequence = value.sequence()) return call_list(*sequence->items, name, arguments);
  return call_loop(**value.as<const Loop*>(), name, arguments);
}

}  // namespace witan::jinja
