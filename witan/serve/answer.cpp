#include "witan/serve/answer.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <random>
#include <utility>

#include "witan/base/text.h"
#include "witan/serve/request_members.h"

namespace witan::serve {
namespace {

std::string make_id(AnswerKind kind) {
  std::random_device random;
  const uint64_t number = (uint64_t{random()} << 32) | random();
  return fmt::format("{}-{:016x}", kind == AnswerKind::chat ? "chatcmpl" : "cmpl", number);
}

std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

class Answer::Choice : public QueuedSequence {
 public:
  Choice(Answer& answer, size_t index, ChoiceStart start, const std::vector<std::string>& stops,
         const std::set<std::string>& tools)
      : answer_(answer),
        index_(index),
        start_(std::move(start)),
        stream_(answer.model_.tokenizer, stops),
        before_(count_characters(start_.echo)) {
    text_ = start_.echo;
    if (!tools.empty()) tools_.emplace(answer.model_.tool_format.value(), tools);
  }

  const GenerationRequest& request() const override { return start_.request; }
  bool wanted() const override { return !answer_.failed_ && !answer_.reply_->gone(); }
  bool on_token(const GeneratedToken& token) override;
  void end(Generation generation) override;
  void fail(const std::string& message) override { answer_.fail(message); }

  size_t index() const { return index_; }
  const std::string& text() const { return text_; }
  const char* finish_reason() const {
    if (!calls_.empty()) return "tool_calls";
    return finish_ == Finish::length ? "length" : "stop";
  }
  const std::vector<ToolCall>& calls() const { return calls_; }
  std::string call_id() const { return fmt::format("call-{}-{}", answer_.id_, index_); }
  // The mean log probability of a token; 0 without tokens.
  double mean_logprob() const { return scored_ > 0 ? logprob_ / static_cast<double>(scored_) : 0; }
  bool begun() const { return begun_; }
  const std::vector<PlacedToken>& tokens() const { return tokens_; }
  // The tokens whose text was sent since the last call; with `all`, all that remain.
  std::vector<PlacedToken> take_shown(bool all);

 private:
  void take(const std::string& released);
  void show(const std::string& text, bool last);
  void place_prompt(const std::vector<GeneratedToken>& prompt);

  Answer& answer_;
  size_t index_;
  ChoiceStart start_;
  TextStream stream_;
  std::optional<ToolCallReader> tools_;
  std::vector<ToolCall> calls_;
  // Numbers of characters: in the echo; in the generated text; and in what was sent of it, which excludes tool calls.
  int64_t before_, released_ = 0, shown_ = 0;
  double logprob_ = 0;
  int64_t scored_ = 0;
  std::string text_;
  std::vector<PlacedToken> tokens_;  // if log probabilities are wanted
  size_t taken_ = 0;
  bool begun_ = false;  // a piece was sent
  Finish finish_ = Finish::length;
};

bool Answer::Choice::on_token(const GeneratedToken& token) {
  ++answer_.usage_.completion_tokens;
  if (token.logprob) logprob_ += static_cast<double>(*token.logprob), ++scored_;
  if (answer_.top_logprobs_ >= 0) tokens_.push_back({token, before_ + stream_.characters()});
  take(stream_.push(token.token));
  return !stream_.stopped();
}

void Answer::Choice::take(const std::string& released) {
  released_ += count_characters(released);
  show(tools_ ? tools_->push(released) : released, false);
}

void Answer::Choice::show(const std::string& text, bool last) {
  text_ += text;
  shown_ += count_characters(text);
  if (!answer_.stream_ || (text.empty() && !last)) return;
  answer_.send_piece(*this, begun_ ? text : start_.echo + text, last);
  begun_ = true;
}

// A stop string cuts off the tokens where it cuts off the text.
void Answer::Choice::end(Generation generation) {
  take(stream_.flush());
  finish_ = stream_.stopped() ? Finish::stop : generation.finish;
  if (stream_.stopped())
    while (tokens_.size() > taken_ && tokens_.back().offset >= before_ + released_) tokens_.pop_back();
  place_prompt(generation.prompt);
  if (index_ % answer_.sampled_ == 0) answer_.usage_.cached_tokens += generation.cached_prompt_tokens;
  ToolCallReader::Rest rest = tools_ ? tools_->finish() : ToolCallReader::Rest();
  calls_ = std::move(rest.calls);
  show(rest.text, true);
  answer_.finish_choice();
}

void Answer::Choice::place_prompt(const std::vector<GeneratedToken>& prompt) {
  std::vector<PlacedToken> placed;
  TextStream text(answer_.model_.tokenizer, {});
  for (const GeneratedToken& token : prompt) {
    placed.push_back({token, text.characters()});
    text.push(token.token);
  }
  tokens_.insert(tokens_.begin(), placed.begin(), placed.end());
}

std::vector<PlacedToken> Answer::Choice::take_shown(bool all) {
  std::vector<PlacedToken> shown;
  for (; taken_ < tokens_.size() && (all || tokens_[taken_].offset < before_ + shown_); ++taken_)
    shown.push_back(tokens_[taken_]);
  return shown;
}

Answer::Answer(AnswerKind kind, const SamplingRequest& request, const ServedModel& model, std::shared_ptr<Reply> reply,
               std::vector<ChoiceStart> starts, int64_t prompt_tokens, const std::set<std::string>& tools)
    : kind_(kind),
      stream_(request.stream),
      include_usage_(request.include_usage),
      top_logprobs_(request.top_logprobs),
      sampled_(static_cast<size_t>(request.best_of)),
      given_(static_cast<size_t>(request.n)),
      model_(model),
      reply_(std::move(reply)),
      id_(make_id(kind)),
      created_(std::time(nullptr)) {
  usage_.prompt_tokens = prompt_tokens;
  for (ChoiceStart& start : starts)
    choices_.push_back(std::make_unique<Choice>(*this, choices_.size(), std::move(start), request.stop, tools));
}

Answer::~Answer() = default;

std::vector<std::shared_ptr<QueuedSequence>> Answer::sequences() {
  std::vector<std::shared_ptr<QueuedSequence>> sequences;
  for (const auto& choice : choices_) sequences.emplace_back(shared_from_this(), choice.get());
  return sequences;
}

Answer::Json Answer::envelope(const char* object) const {
  Json json = Json::object();
  json["id"] = id_;
  json["object"] = object;
  json["created"] = created_;
  json["model"] = model_.name;
  json["choices"] = Json::array();
  return json;
}

// The choices to return, in the order of prompts. If not all samples of a prompt are returned, the likeliest come
// first.
std::vector<const Answer::Choice*> Answer::best() const {
  std::vector<const Choice*> all;
  for (size_t first = 0; first < choices_.size(); first += sampled_) {
    std::vector<const Choice*> sampled;
    for (size_t i = first; i < first + sampled_; ++i) sampled.push_back(choices_[i].get());
    if (given_ < sampled_) std::ranges::stable_sort(sampled, std::greater(), &Choice::mean_logprob);
    all.insert(all.end(), sampled.begin(), sampled.begin() + static_cast<std::ptrdiff_t>(given_));
  }
  return all;
}

Answer::Json Answer::choice_json(const Choice& choice, size_t index) const {
  Json json = Json::object();
  json["index"] = index;
  json["finish_reason"] = choice.finish_reason();
  json["logprobs"] = nullptr;
  if (kind_ == AnswerKind::completion) {
    json["text"] = choice.text();
    if (top_logprobs_ >= 0) json["logprobs"] = completion_logprobs(model_.tokenizer, choice.tokens(), top_logprobs_);
  } else {
    json["message"]["role"] = "assistant";
    const bool calls = !choice.calls().empty();
    json["message"]["content"] = calls && choice.text().empty() ? Json() : Json(choice.text());
    if (calls) json["message"]["tool_calls"] = tool_calls_json(choice.calls(), choice.call_id(), false);
    json["message"]["refusal"] = nullptr;
    if (top_logprobs_ >= 0) json["logprobs"] = chat_logprobs(model_.tokenizer, choice.tokens());
  }
  return json;
}

void Answer::send_event(const Json& chunk) {
  if (!begun_) reply_->begin_events();
  begun_ = true;
  reply_->event(dump(chunk));
}

void Answer::send_piece(Choice& choice, const std::string& text, bool last) {
  const bool chat = kind_ == AnswerKind::chat;
  Json piece = Json::object();
  piece["index"] = choice.index();
  piece["finish_reason"] = last ? Json(choice.finish_reason()) : Json();
  piece["logprobs"] = nullptr;
  const auto shown = choice.take_shown(last);
  if (top_logprobs_ >= 0 && !shown.empty())
    piece["logprobs"] =
        chat ? chat_logprobs(model_.tokenizer, shown) : completion_logprobs(model_.tokenizer, shown, top_logprobs_);
  if (chat) {
    piece["delta"]["content"] = text;
    if (!choice.begun()) piece["delta"]["role"] = "assistant";
    if (last && !choice.calls().empty())
      piece["delta"]["tool_calls"] = tool_calls_json(choice.calls(), choice.call_id(), true);
  } else {
    piece["text"] = text;
  }
  Json chunk = envelope(chat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"].push_back(std::move(piece));
  if (include_usage_) chunk["usage"] = nullptr;
  send_event(chunk);
}

void Answer::finish_choice() {
  if (++finished_ < choices_.size() || failed_) return;
  if (!stream_) return send_whole();
  if (include_usage_) {
    Json chunk = envelope(kind_ == AnswerKind::chat ? "chat.completion.chunk" : "text_completion");
    chunk["usage"] = usage_.json();
    send_event(chunk);
  }
  reply_->event("[DONE]");
  reply_->end_events();
}

void Answer::send_whole() {
  Json json = envelope(kind_ == AnswerKind::chat ? "chat.completion" : "text_completion");
  for (const Choice* choice : best()) json["choices"].push_back(choice_json(*choice, json["choices"].size()));
  json["usage"] = usage_.json();
  reply_->send({200, dump(json)});
}

void Answer::fail(const std::string& message) {
  if (std::exchange(failed_, true)) return;
  const ApiError error(500, message);
  if (!begun_) return reply_->send({500, error.body()});
  reply_->event(error.body());
  reply_->end_events();
}

}  // namespace witan::serve
