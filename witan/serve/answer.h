// The answer to one request. Its choices, each a sequence in the queue, are sent whole at the end or streamed as
// server-sent events.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "witan/generate/request.h"
#include "witan/generate/text_stream.h"
#include "witan/serve/generation_queue.h"
#include "witan/serve/http_server.h"
#include "witan/serve/request.h"
#include "witan/serve/served_model.h"
#include "witan/serve/tool_calls.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::serve {

// The JSON of answers (answer_json.cpp), as OpenAI's API has it: completions, chat completions, and the chunks of both
// when they are streamed (platform.openai.com/docs/api-reference).

// A token of the answer or of an echoed prompt, with the number of characters of the choice's text before it.
struct PlacedToken {
  GeneratedToken token;
  int64_t offset = 0;
};

// For a completion: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. A token whose bytes are not complete
// characters is written as "bytes:\xe2\x80".
nlohmann::json completion_logprobs(const Tokenizer& tokenizer, const std::vector<PlacedToken>& tokens,
                                   int64_t top_logprobs);
// For a chat completion: {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}.
nlohmann::json chat_logprobs(const Tokenizer& tokenizer, const std::vector<PlacedToken>& tokens);

// For a chat completion: [{"id", "type", "function": {"name", "arguments"}}], each with an "index" if `chunk`. Ids
// start with `id`.
nlohmann::json tool_calls_json(const std::vector<ToolCall>& calls, const std::string& id, bool chunk);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, served from the cache
  nlohmann::json json() const;
};

enum class AnswerKind : uint8_t { completion, chat };

// The start that one choice continues.
struct ChoiceStart {
  GenerationRequest request;
  std::string echo;  // the prompt's text, which the answer repeats
};

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  // `starts` has request.best_of entries per prompt. `prompt_tokens` counts each prompt of the request once. `tools`
  // are the names of the tools that the answer may call; if empty, its text is never parsed for calls. `model` must
  // outlive the answer.
  Answer(AnswerKind kind, const SamplingRequest& request, const ServedModel& model, std::shared_ptr<Reply> reply,
         std::vector<ChoiceStart> starts, int64_t prompt_tokens, const std::set<std::string>& tools = {});
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  // The choices for the queue, which keep the answer alive.
  std::vector<std::shared_ptr<QueuedSequence>> sequences();

 private:
  class Choice;
  using Json = nlohmann::json;

  Json envelope(const char* object) const;
  Json choice_json(const Choice& choice, size_t index) const;
  std::vector<const Choice*> best() const;
  void send_piece(Choice& choice, const std::string& text, bool last);
  void send_event(const Json& chunk);
  void finish_choice();
  void send_whole();
  void fail(const std::string& message);

  const AnswerKind kind_;
  const bool stream_, include_usage_;
  const int64_t top_logprobs_;
  const size_t sampled_, given_;  // choices of each prompt
  const ServedModel& model_;
  const std::shared_ptr<Reply> reply_;
  const std::string id_;
  const int64_t created_;  // seconds since 1970
  Usage usage_;
  std::vector<std::unique_ptr<Choice>> choices_;
  size_t finished_ = 0;
  bool begun_ = false, failed_ = false;
};

}  // namespace witan::serve
