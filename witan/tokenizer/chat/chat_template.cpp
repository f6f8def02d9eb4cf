#include "witan/tokenizer/chat/chat_template.h"

#include <utility>

#include "witan/base/text.h"
#include "witan/tokenizer/chat/parser.h"
#include "witan/tokenizer/chat/rendering.h"

namespace witan {

struct ChatTemplate::Program {
  jinja::Parsed parsed;
};

namespace {

using jinja::Value;

// What a template may do, and what it may do for every byte that it is given.
constexpr uint64_t kWork = uint64_t{1} << 24, kWorkPerByte = 256;

Value checked_text(const std::string& text, const char* what) {
  require<DataError>(find_invalid_utf8(text) == std::string::npos, "a message's ", what, " is not UTF-8");
  return Value::text(text);
}

Value value_of(const ChatMessage& message) {
  if (message.json.empty())
    return Value::dict(
        {{"role", checked_text(message.role, "role")}, {"content", checked_text(message.content, "content")}});
  Value value = jinja::from_json(message.json, "a message");
  require<DataError>(value.entries() != nullptr, "a message is ", type_name(value), ", not a JSON object");
  return value;
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
  jinja::Rendering rendering(name_, kWork + kWorkPerByte * bytes_of(messages, options), options.now);
  jinja::Items items;
  for (const ChatMessage& message : messages) items.push_back(value_of(message));
  rendering.define("messages", Value::list(std::move(items)));
  rendering.define("tools", options.tools.empty() ? Value::none() : jinja::from_json(options.tools, "tools"));
  rendering.define("documents", Value::none());
  rendering.define("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  if (!options.bos_token.empty()) rendering.define("bos_token", checked_text(options.bos_token, "bos_token"));
  if (!options.eos_token.empty()) rendering.define("eos_token", checked_text(options.eos_token, "eos_token"));
  if (!options.variables.empty()) {
    const Value variables = jinja::from_json(options.variables, "variables of the chat template");
    require<DataError>(variables.entries() != nullptr, "variables of the chat template are ", type_name(variables),
                       ", not a JSON object");
    for (const auto& [name, value] : *variables.entries()) rendering.define(name, value);
  }
  return rendering.run(program_->parsed.block);
}

}  // namespace witan
