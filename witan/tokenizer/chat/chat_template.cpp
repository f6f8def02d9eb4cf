#include "witan/tokenizer/chat/chat_template.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/parser.h"
#include "witan/tokenizer/chat/rendering.h"

namespace witan {

struct ChatTemplate::Program {
  jinja::Parsed parsed;
};

namespace {

using jinja::Value;

// The budget of a chat template: a base, an addition per byte of its input, and an upper bound, which takes seconds.
constexpr uint64_t kWork = uint64_t{1} << 24, kWorkPerByte = 256, kMostWork = uint64_t{1} << 28;
// The budget of a text template: the same base, and an addition per unit of its fields' weight (weight_of()).
constexpr uint64_t kWorkPerUnit = 2048;

Value checked_text(const std::string& text, const char* what) {
  require<DataError>(find_invalid_utf8(text) == std::string::npos, "a message's ", what, " is not valid UTF-8");
  return Value::text(text);
}

// Templates build control tokens from roles, such as <|user|>, and may print the names of members. A plain word cannot
// spell a control token by itself.
bool is_plain_word(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return std::ranges::all_of(text, plain);
}

Value value_of(const ChatMessage& message) {
  Value value = message.json.empty() ? Value::dict({{Value::text("role"), checked_text(message.role, "role")},
                                                    {Value::text("content"), checked_text(message.content, "content")}})
                                     : jinja::from_json(message.json, "a message");
  require<DataError>(value.entries() != nullptr, "a message is ", type_name(value), ", not a JSON object");
  jinja::Entries entries;
  for (const auto& [key, held] : *value.entries()) {
    const bool word = *key.string() == "role" && held.string() && is_plain_word(*held.string());
    entries.emplace_back(is_plain_word(*key.string()) ? key : given(key), word ? held : given(held));
  }
  return Value::dict(std::move(entries));
}

uint64_t bytes_of(std::span<const ChatMessage> messages, const ChatTemplateOptions& options) {
  uint64_t bytes = options.tools.size() + options.variables.size();
  for (const ChatMessage& message : messages)
    bytes += message.role.size() + message.content.size() + message.json.size();
  return bytes;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::string name)
    : source_(std::move(source)),
      name_(std::move(name)),
      program_(std::make_shared<const Program>(Program{jinja::parse(source_, name_)})) {}

bool ChatTemplate::has_generation_blocks() const {
  return program_->parsed.has_generation;
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const ChatTemplateOptions& options) const {
  return render_chat(messages, options).text;
}

RenderedChat ChatTemplate::render_chat(std::span<const ChatMessage> messages,
                                       const ChatTemplateOptions& options) const {
  jinja::Rendering rendering(name_, std::min(kMostWork, kWork + kWorkPerByte * bytes_of(messages, options)),
                             options.now);
  jinja::Items items;
  for (const ChatMessage& message : messages) items.push_back(value_of(message));
  rendering.define("messages", Value::list(std::move(items)));
  rendering.define("tools", options.tools.empty() ? Value::none() : given(jinja::from_json(options.tools, "tools")));
  rendering.define("documents", Value::none());
  rendering.define("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  if (!options.bos_token.empty()) rendering.define("bos_token", checked_text(options.bos_token, "bos_token"));
  if (!options.eos_token.empty()) rendering.define("eos_token", checked_text(options.eos_token, "eos_token"));
  if (!options.variables.empty()) {
    const Value variables = jinja::from_json(options.variables, "variables of the chat template");
    require<DataError>(variables.entries() != nullptr, "variables of the chat template are ", type_name(variables),
                       ", not a JSON object");
    for (const auto& [name, value] : *variables.entries()) rendering.define(*name.string(), given(value));
  }
  return rendering.run(program_->parsed.block);
}

struct TextTemplate::Program {
  std::string name;
  jinja::Parsed parsed;
};

TextTemplate::TextTemplate(std::string source, std::string name) {
  const jinja::Whitespace as_it_stands{false, false, true};
  jinja::Parsed parsed = jinja::parse(source, name, as_it_stands);
  program_ = std::make_shared<const Program>(Program{std::move(name), std::move(parsed)});
}

std::string TextTemplate::render(const jinja::Entries& fields) const {
  uint64_t weight = 0;
  for (const auto& [name, value] : fields) weight += weight_of(value);
  jinja::Rendering rendering(program_->name, kWork + kWorkPerUnit * weight, std::nullopt,
                             jinja::Rendering::Missing::is_an_error);
  for (const auto& [name, value] : fields) rendering.define(str(name), value);
  return rendering.run(program_->parsed.block).text;
}

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
