#include "witan/cli/models/chat_tokens.h"

#include "witan/data/corpus/conversations.h"
#include "witan/tokenizer/chat/chat_template.h"

namespace witan::cli {

ChatTokens chat_tokens(const ExportedRun& run, const std::optional<Tokenizer>& tokenizer) {
  const auto found = run.config.data.sft && tokenizer ? find_chat_template(run.folder) : std::nullopt;
  if (!found) return {};
  return {found->chat.source(), found->bos_token, found->eos_token, end_of_turn(*found, *tokenizer)};
}

}  // namespace witan::cli
