#include "witan/tokenizer/chat/messages.h"

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using jinja::Entries;
using jinja::Items;
using jinja::Value;

constexpr const char* kCallForm =
    "tool_calls must be a list of {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}: ";

bool is_text_part(const Value& part) {
  const Entries* entries = part.entries();
  const Value *type = entries ? jinja::find(*entries, "type") : nullptr,
              *text = entries ? jinja::find(*entries, "text") : nullptr;
  return type && type->string() && *type->string() == "text" && text && text->string();
}

// Joins a list that consists of text parts.
Value joined_content(const Value& content) {
  const jinja::Sequence* parts = content.sequence();
  if (!parts) return content;
  std::string all;
  for (const Value& part : *parts->items) {
    if (!is_text_part(part)) return content;
    all += *jinja::find(*part.entries(), "text")->string();
  }
  return Value::text(std::move(all));
}

Value decoded_arguments(const Value& arguments) {
  if (arguments.entries()) return arguments;
  require<DataError>(arguments.string() != nullptr, kCallForm, "the arguments of a call are ", type_name(arguments),
                     ", not an object or its JSON in a string");
  Value decoded = jinja::from_json(*arguments.string(), cat(kCallForm, "arguments"));
  require<DataError>(decoded.entries() != nullptr, kCallForm, "the arguments of a call must be a JSON object, but are ",
                     type_name(decoded));
  return decoded;
}

// Decodes the arguments of the call, or of its function.
Value normal_call(const Value& call) {
  require<DataError>(call.entries() != nullptr, kCallForm, "a call is ", type_name(call));
  Entries entries = *call.entries();
  for (auto& [key, value] : entries) {
    if (*key.string() == "arguments") value = decoded_arguments(value);
    if (*key.string() != "function") continue;
    require<DataError>(value.entries() != nullptr, kCallForm, "a call's function is ", type_name(value));
    Entries function = *value.entries();
    for (auto& [name, held] : function)
      if (*name.string() == "arguments") held = decoded_arguments(held);
    value = Value::dict(std::move(function));
  }
  return Value::dict(std::move(entries));
}

Value normal_calls(const Value& given) {
  const Value calls = given.string() ? jinja::from_json(*given.string(), "tool_calls") : given;
  require<DataError>(calls.sequence() != nullptr, kCallForm, "they are ", type_name(calls));
  Items items;
  for (const Value& call : *calls.sequence()->items) items.push_back(normal_call(call));
  return Value::list(std::move(items));
}

}  // namespace

Value normal_message(const Value& message) {
  const Entries* given = message.entries();
  const Value* role = given ? jinja::find(*given, "role") : nullptr;
  require<DataError>(role && role->string(), "a message has no role");
  Entries entries = *given;
  bool calls = false;
  for (auto& [key, value] : entries) {
    if (*key.string() == "content") value = joined_content(value);
    if (*key.string() != "tool_calls" || value.is_none()) continue;
    value = normal_calls(value);
    calls = truth(value);
  }
  const Value* content = jinja::find(entries, "content");
  if (calls && (!content || content->is_none())) set_entry(entries, Value::text("content"), Value::text(""));
  return Value::dict(std::move(entries));
}

Value normal_tools(const Value& given) {
  const Value tools = given.string() ? jinja::from_json(*given.string(), "tools") : given;
  if (tools.is_undefined() || tools.is_none()) return Value::none();
  require<DataError>(tools.sequence() != nullptr, "tools must be a list, but are ", type_name(tools));
  Items items;
  for (const Value& one : *tools.sequence()->items) {
    items.push_back(one.string() ? jinja::from_json(*one.string(), "a tool") : one);
    require<DataError>(items.back().entries() != nullptr, "a tool must be an object, but is ", type_name(items.back()));
  }
  return items.empty() ? Value::none() : Value::list(std::move(items));
}

Value decoded_messages(const Value& messages) {
  if (!messages.string()) return messages;
  try {
    return jinja::from_json(*messages.string(), "messages");
  } catch (const DataError&) {  // it is plain text
    return messages;
  }
}

}  // namespace witan
