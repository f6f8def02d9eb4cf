// Chat templates, which turn a model's conversations into text. They are written in a subset of Jinja and rendered as
// by Hugging Face's apply_chat_template: blocks are trimmed (trim_blocks, lstrip_blocks), `tools` and `documents` are
// none unless given, undefined names print nothing, values are immutable, and {% generation %} blocks contain what the
// model itself says. docs/finetune.md lists what is supported; anything else is refused with its name and line. Jinja:
// https://jinja.palletsprojects.com/en/stable/templates/
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/tokenizer/chat/value.h"
#include "witan/tokenizer/text/added_tokens.h"

namespace witan {

struct ChatMessage {
  std::string role, content;
  std::string json = {};  // the whole message as a JSON object, which replaces role and content; empty: unused
};

struct ChatTemplateOptions {
  bool add_generation_prompt = false;          // ends with the start of an answer
  std::string bos_token = {}, eos_token = {};  // empty: undefined
  std::string tools = {};                      // a JSON array; empty: none
  std::string variables = {};                  // a JSON object of further variables, such as {"enable_thinking": false}
  // The time for strftime_now(), in seconds since 1970, in UTC; nullopt: the current local time.
  std::optional<int64_t> now = {};
};

// Thrown by a template's raise_exception(): the template refuses this conversation.
class ConversationError : public DataError {
 public:
  using DataError::DataError;
};

struct RenderedChat {
  std::string text;
  std::vector<TextSpan> generated;  // written by {% generation %} blocks, sorted
  // Text from messages, tools and variables, sorted; special tokens spelled in it are plain text. Excludes the
  // template's own text, its bos_token and eos_token, and roles that are plain words.
  std::vector<TextSpan> given = {};
};

// Immutable and cheap to copy; may be used from several threads.
class ChatTemplate {
 public:
  // `name` identifies the template in messages, such as the path of its file. Throws DataError("NAME:LINE: ...") for
  // text that is not a template or goes beyond the supported part of Jinja.
  ChatTemplate(std::string source, std::string name);

  // Throws ConversationError if the template raises an exception, DataError for all other failures: text that is not
  // UTF-8, invalid JSON, an operation that a value does not support, more work than a template may take.
  std::string render(std::span<const ChatMessage> messages, const ChatTemplateOptions& options = {}) const;
  RenderedChat render_chat(std::span<const ChatMessage> messages, const ChatTemplateOptions& options = {}) const;

  const std::string& source() const { return source_; }
  const std::string& name() const { return name_; }
  bool has_generation_blocks() const;

 private:
  struct Program;
  std::string source_, name_;
  std::shared_ptr<const Program> program_;
};

// A model's template and the tokens that are passed to it.
struct FoundChatTemplate {
  ChatTemplate chat;
  std::string bos_token, eos_token;
};

// The template of a Hugging Face folder, or of a run, which keeps the files of such a folder in RUN/hf:
// chat_template.jinja, else chat_template in tokenizer_config.json (of several, the one named "default"). bos_token and
// eos_token come from tokenizer_config.json, else from special_tokens_map.json. Returns nullopt if the folder has no
// template. Throws DataError, CorruptionError, IoError.
std::optional<FoundChatTemplate> find_chat_template(const fs::path& folder);

// Reads a template from a file, or from the "chat_template" of a JSON file. The tokens come from the file's folder.
FoundChatTemplate read_chat_template(const fs::path& file);

// A template of a row's fields, as lm-evaluation-harness has them in its tasks. Unlike chat templates it keeps white
// space as written, and printing an undefined name is an error (lm_eval/utils.py:
// Environment(undefined=StrictUndefined, keep_trailing_newline=True)). Immutable and cheap to copy; may be used from
// several threads.
class TextTemplate {
 public:
  // Throws DataError("NAME:LINE: ...") for text that is not a template or goes beyond the supported part of Jinja.
  TextTemplate(std::string source, std::string name);

  // Throws DataError naming the template and the line.
  std::string render(const jinja::Entries& fields) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

// Normalises messages and tools to the form that chat templates expect, so that training data and served requests are
// rendered alike. Clients and data sets may encode parts of them as JSON in strings: OpenAI's API does so for the
// arguments of calls, and tables for columns whose type differs from row to row.
//
// Joins content that is a list of text parts to one string (content with other parts stays a list), sets it to an empty
// string if the message only has tool_calls, and decodes tool_calls and their arguments if they are JSON in strings.
// Throws DataError("tool_calls ..."), and for a message that is not an object with a role.
jinja::Value normal_message(const jinja::Value& message);

// The tools as a list of objects, decoded if they are JSON in strings; none if there are no tools. Throws DataError.
jinja::Value normal_tools(const jinja::Value& tools);

// Decodes messages that are a JSON string; returns anything else unchanged.
jinja::Value decoded_messages(const jinja::Value& messages);

}  // namespace witan
