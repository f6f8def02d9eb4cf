#include "witan/cli/generate/chat_format.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/ledger.h"
#include "witan/data/corpus/conversations.h"

namespace witan::cli {

std::optional<ChatFormat> ChatFormat::open(const TrainedRun& run, const std::string& file,
                                           bool content_special_tokens) {
  auto found = file.empty() ? find_chat_template(run.folder) : std::optional(read_chat_template(file));
  if (!found) return {};
  return ChatFormat(std::move(*found), *run.tokenizer,
                    content_special_tokens || run.config->data.content_special_tokens);
}

std::string ChatFormat::missing(const TrainedRun& run) {
  const fs::path folder = run.folder / kCompanionFolder;
  std::error_code error;
  return cat("the run ", run.folder.filename().string(), " has no chat template: ",
             fs::exists(folder, error)
                 ? cat(folder.string(), " has neither a chat_template.jinja nor a tokenizer_config.json with one")
                 : "it was neither imported with one nor trained on conversations",
             ". Give the template that the model "
             "was fine-tuned with (--chat-template FILE); a model that was not continues prompts (`witan generate`, "
             "/v1/completions)");
}

RenderedChat ChatFormat::prompt(std::span<const ChatMessage> messages, const std::string& tools,
                                const std::string& variables) const {
  ChatTemplateOptions options;
  options.add_generation_prompt = true;
  options.bos_token = found_.bos_token;
  options.eos_token = found_.eos_token;
  options.tools = tools;
  options.variables = variables;
  return found_.chat.render_chat(messages, options);
}

std::string ChatFormat::render(std::span<const ChatMessage> messages, const std::string& tools,
                               const std::string& variables) const {
  return prompt(messages, tools, variables).text;
}

std::vector<int32_t> ChatFormat::encode(std::span<const ChatMessage> messages, const std::string& tools,
                                        const std::string& variables) const {
  std::vector<int32_t> tokens = encode(prompt(messages, tools, variables));
  require<DataError>(!tokens.empty(), found_.chat.name(), ": the template writes nothing for this conversation");
  return tokens;
}

std::vector<int32_t> ChatFormat::encode(RenderedChat rendered) const {
  if (content_special_tokens_) rendered.given.clear();
  std::vector<int32_t> tokens;
  tokenizer_.encode_to(rendered.text, tokens, rendered.given);
  return tokens;
}

std::optional<std::vector<int32_t>> ChatFormat::encode_within(int64_t most_tokens,
                                                              std::span<const ChatMessage> messages,
                                                              const std::string& tools,
                                                              const std::string& variables) const {
  RenderedChat rendered = prompt(messages, tools, variables);
  if (!tokenizer_.fits(rendered.text, most_tokens, true)) return {};
  return encode(std::move(rendered));
}

void ChatFormat::add_stop_tokens(std::vector<int32_t>& tokens) const {
  const auto named = found_.eos_token.empty() ? std::nullopt : tokenizer_.token_id(found_.eos_token);
  for (const std::optional<int32_t>& id : {named, end_of_turn(found_, tokenizer_)})
    if (id && std::ranges::find(tokens, *id) == tokens.end()) tokens.push_back(*id);
}

}  // namespace witan::cli
