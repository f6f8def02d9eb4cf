#include "witan/train/data/run_conversations.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "witan/base/error.h"
#include "witan/train/state/named_checkpoint.h"

namespace witan {
namespace {

fs::path folder_of(const fs::path& file_or_folder) {
  return fs::is_directory(file_or_folder) ? file_or_folder : file_or_folder.parent_path();
}

std::optional<FoundChatTemplate> find_template(const RunConfig& config) {
  if (!config.data.chat_template.empty()) {
    FoundChatTemplate found = read_chat_template(config.data.chat_template);
    if (!found.eos_token.empty()) return found;
    if (auto beside = find_chat_template(folder_of(config.data.tokenizer))) {
      found.bos_token = beside->bos_token;
      found.eos_token = beside->eos_token;
    }
    return found;
  }
  if (auto found = find_chat_template(folder_of(config.data.tokenizer))) return found;
  const std::string& from = config.train.init_from;
  if (from.empty()) return std::nullopt;
  return find_chat_template(folder_of_weights(from, config.train.runs_folder));
}

std::shared_ptr<const ConversationFormat> format_of(FoundChatTemplate found, const DataConfig& config,
                                                    const Tokenizer& tokenizer) {
  ConversationFormat format = conversation_format(std::move(found), tokenizer);
  format.messages_key = config.messages_key;
  format.answers_only = config.loss_on == "answers";
  format.content_special_tokens = config.content_special_tokens;
  format.preferences = config.preferences;
  return std::make_shared<const ConversationFormat>(std::move(format));
}

}  // namespace

std::optional<FoundChatTemplate> chat_template_of(const RunConfig& config) {
  auto kept = find_chat_template(fs::path(config.train.runs_folder) / config.train.run);
  return kept ? std::move(kept) : find_template(config);
}

std::shared_ptr<const ConversationFormat> find_conversation_format(const RunConfig& config,
                                                                   const Tokenizer& tokenizer) {
  if (!config.data.sft) return nullptr;
  auto found = find_template(config);
  if (!found && config.data.preferences)  // pairs of texts need none
    found = FoundChatTemplate{ChatTemplate("{{ raise_exception('there is no chat template for messages: give one "
                                           "(--chat-template FILE)') }}",
                                           "no chat template"),
                              {},
                              {}};
  require<ConfigError>(found.has_value(), "sft = true: there is no chat template beside the tokenizer ",
                       config.data.tokenizer,
                       config.train.init_from.empty() ? "" : cat(" nor in ", config.train.init_from),
                       "; give the one that the model is to learn: --chat-template FILE");
  return format_of(std::move(*found), config.data, tokenizer);
}

void keep_chat_template(const ConversationFormat& format, const fs::path& run) {
  nlohmann::ordered_json kept = {{"chat_template", format.chat.source()}};
  if (!format.bos_token.empty()) kept["bos_token"] = format.bos_token;
  if (!format.eos_token.empty()) kept["eos_token"] = format.eos_token;
  write_file_atomically(run / "tokenizer_config.json", kept.dump(2) + "\n");
}

std::shared_ptr<const ConversationFormat> kept_conversation_format(const DataConfig& config, const Tokenizer& tokenizer,
                                                                   const fs::path& run) {
  if (!config.sft) return nullptr;
  auto found = find_chat_template(run);
  require<ConfigError>(
      found.has_value(), run.string(),
      " has lost its chat template (tokenizer_config.json), which its conversations were rendered with");
  return format_of(std::move(*found), config, tokenizer);
}

}  // namespace witan
