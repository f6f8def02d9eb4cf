// The chat template of a run that is fine-tuned on conversations: where it is found, and where the run keeps it.
#pragma once

#include <memory>
#include <optional>

#include "witan/data/corpus/conversations.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {

// The chat template that the run keeps or, before it does, the one that find_conversation_format() finds; nothing where
// there is none.
std::optional<FoundChatTemplate> chat_template_of(const RunConfig& config);

// How a run reads conversations: by the template in data.chat_template, else that of the folder with the tokenizer,
// else that of init_from. Null without sft. Throws ConfigError when there is none, DataError for one that cannot be
// used.
std::shared_ptr<const ConversationFormat> find_conversation_format(const RunConfig& config, const Tokenizer& tokenizer);

// RUN/tokenizer_config.json with the template and its tokens, as Hugging Face keeps them: what `run` is told by
// find_chat_template() from then on.
void keep_chat_template(const ConversationFormat& format, const fs::path& run);

// The format of a run that has kept its template; null without sft. Throws as find_conversation_format().
std::shared_ptr<const ConversationFormat> kept_conversation_format(const DataConfig& config, const Tokenizer& tokenizer,
                                                                   const fs::path& run);

}  // namespace witan
