// How a run that was fine-tuned on conversations is talked to, for the programs that it is exported to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/cli/models/exported_run.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {

struct ChatTokens {
  std::string chat_template;           // its text; empty: none, nor are there any tokens
  std::string bos_token, eos_token;    // as the template was given them; empty: not
  std::optional<int32_t> end_of_turn;  // what ends an answer
};

// Nothing of a run that was not fine-tuned so, or has no tokenizer.
ChatTokens chat_tokens(const ExportedRun& run, const std::optional<Tokenizer>& tokenizer);

}  // namespace witan::cli
