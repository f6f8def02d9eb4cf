#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/builtins.h"
#include "witan/tokenizer/chat/strings.h"

namespace witan::jinja {
namespace {

Value attribute_of_loop(const Loop& loop, std::string_view name) {
  const auto index = static_cast<int64_t>(loop.index), length = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index == length - 1);
  if (name == "length") return Value::integer(length);
  if (name == "depth" || name == "depth0") return Value::integer(name == "depth" ? 1 : 0);  // there is no recursion
  if (name == "previtem" && index > 0) return (*loop.items)[loop.index - 1];
  if (name == "nextitem" && index + 1 < length) return (*loop.items)[loop.index + 1];
  return Value::undefined(cat("loop.", name));
}

}  // namespace

Value attribute_of(const Value& value, const std::string& name) {
  require<DataError>(!value.is_undefined(), value.is_undefined() ? value.as<Undefined>()->name : "",
                     " is undefined and has no attribute ", name);
  require<DataError>(!has_method(value, name), "the method ", name, " of ", type_name(value), " must be called");
  if (const Entries* entries = value.entries()) {
    const Value* found = find(*entries, name);
    return found ? *found : Value::undefined(name);
  }
  if (Namespace* const* space = value.as<Namespace*>()) {
    const auto found = (*space)->attributes.find(name);
    return found == (*space)->attributes.end() ? Value::undefined(name) : found->second;
  }
  if (const Loop* const* loop = value.as<const Loop*>()) return attribute_of_loop(**loop, name);
  return Value::undefined(name);
}

Value item_of(const Value& value, const Value& key) {
  require<DataError>(!value.is_undefined(), value.is_undefined() ? value.as<Undefined>()->name : "",
                     " is undefined and has no items");
  if (const Entries* entries = value.entries()) {
    const Value* found = find(*entries, key);
    return found ? *found : Value::undefined(key.string() ? *key.string() : "an item");
  }
  if (const std::string* name = key.string()) return attribute_of(value, *name);
  const bool listed = value.sequence() || value.string();
  if (!listed || !(key.as<int64_t>() || key.as<bool>())) return Value::undefined("an item");
  const int64_t size = length_of(value), given = integer_of(key, "an index"), at = given < 0 ? given + size : given;
  if (at < 0 || at >= size) return Value::undefined(cat("item ", given));
  if (value.sequence()) return (*value.sequence()->items)[static_cast<size_t>(at)];
  const std::string_view text = *value.string(), rest = text.substr(byte_of(text, at));
  return Value::text(value.marked()->part(rest.substr(0, byte_of(rest, 1))));
}

}  // namespace witan::jinja
