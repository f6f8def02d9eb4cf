// Chat templates: how a model's conversations become text. A template is written in a part of Jinja, and is set up as
// Hugging Face's apply_chat_template does it: blocks are trimmed (trim_blocks, lstrip_blocks), `tools` and `documents`
// are none unless they are given, undefined names print nothing, values cannot be changed, and {% generation %} blocks
// hold what the model says itself. docs/finetune.md lists what is supported; what is not is refused by name and line.
// Jinja: https://jinja.palletsprojects.com/en/stable/templates/
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/tokenizer/chat/value.h"
#include "witan/tokenizer/text/added_tokens.h"

namespace witan {

struct ChatMessage {
  std::string role, content;
  std::string json =
      {};  // the whole message as a JSON object, instead of role and content; empty: they are the message
};

struct ChatTemplateOptions {
  bool add_generation_prompt = false;          // ends with what stands before an answer
  std::string bos_token = {}, eos_token = {};  // empty: not defined
  std::string tools = {};                      // a JSON array; empty: none
  std::string variables = {};                  // a JSON object of further names, such as {"enable_thinking": false}
  // What strftime_now() tells, in seconds since 1970, of UTC; nothing: the clock's local time.
  std::optional<int64_t> now = {};
};

// What a template's raise_exception() throws: it does not take this conversation.
class ConversationError : public DataError {
 public:
  using DataError::DataError;
};

struct RenderedChat {
  std::string text;
  std::vector<TextSpan> generated;  // by {% generation %} blocks, in order
  // What messages, tools and variables wrote, in order: special tokens that it spells are text. The template's own
  // text, its bos_token and eos_token, and roles that are plain words are not part of it.
  std::vector<TextSpan> given = {};
};

// Immutable and cheap to copy; may be used from several threads.
class ChatTemplate {
 public:
  // `name` is what messages call it, such as the file's path. Throws DataError("NAME:LINE: ...") for text that is not a
  // template and for what is beyond the supported part of Jinja.
  ChatTemplate(std::string source, std::string name);

  // Throws ConversationError when the template raises one, DataError for what goes wrong otherwise: text that is not
  // UTF-8, JSON that is none, an operation on values that do not have it, more work than a template may take.
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

// A model's template and the tokens that it is given.
struct FoundChatTemplate {
  ChatTemplate chat;
  std::string bos_token, eos_token;
};

// The template of a Hugging Face folder, or of a run, which keeps such a folder's files in RUN/hf: chat_template.jinja,
// else the chat_template of tokenizer_config.json (of several the one that is called "default"). bos_token and
// eos_token are tokenizer_config.json's, else special_tokens_map.json's. Nothing when the folder has none. Throws
// DataError, CorruptionError, IoError.
std::optional<FoundChatTemplate> find_chat_template(const fs::path& folder);

// Likewise of a file: a template, or a JSON file with a "chat_template". The tokens are those of the folder it lies in.
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

}  // namespace witan
