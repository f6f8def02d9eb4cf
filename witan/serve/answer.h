// The answer to one request while its choices grow, each a sequence in the queue: whole at the end, or as server-sent
// events as they come.
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

enum class AnswerKind : uint8_t { completion, chat };

// What one choice continues.
struct ChoiceStart {
  GenerationRequest request;
  std::string echo;  // the text before it that the answer repeats
};

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  // `starts` are request.best_of for each prompt. `prompt_tokens` are those of the request's prompts, each counted
  // once. `tools` are the names of those that an answer may call, none: its text is text. `model` must outlive the
  // answer.
  Answer(AnswerKind kind, const SamplingRequest& request, const ServedModel& model, std::shared_ptr<Reply> reply,
         std::vector<ChoiceStart> starts, int64_t prompt_tokens, const std::set<std::string>& tools = {});
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  // Its choices, for the queue, which keep it alive.
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
