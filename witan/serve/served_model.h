// What a server serves: a model behind a function, its tokenizer, and what applies where a request says nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "witan/generate/generation_config.h"
#include "witan/serve/generation_queue.h"
#include "witan/serve/request.h"
#include "witan/serve/tool_calls.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::serve {

struct ServedModel {
  std::string name;  // as requests call it
  Tokenizer tokenizer;
  // A conversation as the model's chat template writes it, up to where the answer begins, in tokens; nothing if there
  // are surely more than `most_tokens`. Throws DataError for what the template refuses. Empty: there is no template.
  std::function<std::optional<std::vector<int32_t>>(const ChatRequest& request, int64_t most_tokens)> encode_chat;
  std::string no_chat;                    // without a template: why, and the way out
  std::optional<ToolFormat> tool_format;  // how it calls tools; nothing: not in a way that can be read
  GenerationConfig defaults;              // and the tokens that end a text
  int64_t most_tokens = 0;                // of a prompt and what follows it
  MakeEngine make_engine;
};

}  // namespace witan::serve
