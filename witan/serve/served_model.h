// The model that a server serves: its engine, its tokenizer, and the defaults for requests.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "witan/generate/input_files.h"
#include "witan/serve/generation_queue.h"
#include "witan/serve/request.h"
#include "witan/serve/tool_calls.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::serve {

struct ServedModel {
  std::string name;  // the name used in requests
  Tokenizer tokenizer;
  // Renders a conversation by the model's chat template, up to the start of the answer, and encodes it; nullopt if it
  // certainly has more than `most_tokens` tokens. Throws DataError if the template refuses it. Empty without a
  // template.
  std::function<std::optional<std::vector<int32_t>>(const ChatRequest& request, int64_t most_tokens)> encode_chat;
  std::string no_chat;                    // without a template: the reason and the way out
  std::optional<ToolFormat> tool_format;  // how the model writes tool calls; nullopt: in no supported format
  GenerationConfig defaults;              // includes the tokens that end a text
  int64_t most_tokens = 0;                // of a prompt and its answer together
  MakeEngine make_engine;
};

}  // namespace witan::serve
