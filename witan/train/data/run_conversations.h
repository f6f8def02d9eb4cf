// The chat template of a run that is fine-tuned on conversations: finds it, and keeps a copy with the run.
#pragma once

#include <memory>
#include <optional>

#include "witan/data/corpus/conversations.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {

// The run's copy of its chat template or, before it has one, the template that find_conversation_format() finds;
// nothing if there is none.
std::optional<FoundChatTemplate> chat_template_of(const RunConfig& config);

// The format in which a run reads conversations: the template is data.chat_template, else the one in the tokenizer's
// folder, else that of init_from. Null without sft. Throws ConfigError if there is none, DataError if it is unusable.
std::shared_ptr<const ConversationFormat> find_conversation_format(const RunConfig& config, const Tokenizer& tokenizer);

// Writes the template and its tokens to RUN/tokenizer_config.json, in Hugging Face's format, where find_chat_template()
// finds them.
void keep_chat_template(const ConversationFormat& format, const fs::path& run);

// The format by the run's own copy of the template; null without sft. Throws as find_conversation_format().
std::shared_ptr<const ConversationFormat> kept_conversation_format(const DataConfig& config, const Tokenizer& tokenizer,
                                                                   const fs::path& run);

}  // namespace witan
