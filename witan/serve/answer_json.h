// The JSON of answers, as OpenAI's API has it: completions, chat completions, and the chunks of both when they are
// streamed (platform.openai.com/docs/api-reference).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/generate/request.h"
#include "witan/serve/tool_calls.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::serve {

// A token of the answer, or of an echoed prompt, and how many characters of the choice's text precede it.
struct PlacedToken {
  GeneratedToken token;
  int64_t offset = 0;
};

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: of a completion. A token whose bytes are no whole
// characters is written as "bytes:\xe2\x80".
nlohmann::json completion_logprobs(const Tokenizer& tokenizer, const std::vector<PlacedToken>& tokens,
                                   int64_t top_logprobs);
// {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}: of a chat completion.
nlohmann::json chat_logprobs(const Tokenizer& tokenizer, const std::vector<PlacedToken>& tokens);

// [{"id", "type", "function": {"name", "arguments"}}]: of a chat completion; of a chunk with an "index" each. Ids begin
// with `id`.
nlohmann::json tool_calls_json(const std::vector<ToolCall>& calls, const std::string& id, bool chunk);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, that were not computed again
  nlohmann::json json() const;
};

}  // namespace witan::serve
