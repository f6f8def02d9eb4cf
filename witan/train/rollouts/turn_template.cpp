#include "witan/train/rollouts/turn_template.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// The conversation that stands for the real one: texts that no template and no message contains.
const ChatMessage kQuestion{"user", "The question of Witan's 7c1f."};
constexpr std::string_view kAnswer = "The answer of Witan's 5e0b.";

std::string_view without_space_at_end(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  return last == text.npos ? std::string_view() : text.substr(0, last + 1);
}

ChatMessage plain_answer(const std::string& text) {
  return {"assistant", text};
}

// A call of a tool, for templates that show results only after one.
const ChatMessage& call_of_tool() {
  static const ChatMessage call{
      {},
      {},
      R"({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "000000000", )"
      R"("function": {"name": "tool_7c1f", "arguments": {}}}]})"};
  return call;
}

ChatMessage message_of(const std::string& role) {
  if (role != "tool") return {role, "More."};
  return {{}, {}, R"({"role": "tool", "name": "result", "tool_call_id": "000000000", "content": "More."})"};
}

}  // namespace

TurnTemplate::TurnTemplate(std::shared_ptr<const ConversationFormat> format, std::shared_ptr<const Tokenizer> tokenizer)
    : format_(std::move(format)), tokenizer_(std::move(tokenizer)) {
  const std::vector<ChatMessage> question = {kQuestion};
  try {
    prompt_ = format_->chat.render(question, {.add_generation_prompt = true,
                                              .bos_token = format_->bos_token,
                                              .eos_token = format_->eos_token,
                                              .now = kTrainingDay});
  } catch (const DataError& error) {
    throw ConfigError(cat("max_turns: the chat template ", format_->chat.name(),
                          " refuses a user's message: ", error.what(), ": give another one (--chat-template FILE)"));
  }
  const std::string after_tool = refusal("tool"), after_user = refusal("user");
  require<ConfigError>(after_tool.empty() || after_user.empty(), "max_turns above 1: after a tool's result the chat ",
                       "template ", after_tool, "; after a user's message it ", after_user,
                       ". Give one that leaves earlier answers as they were sampled (--chat-template FILE), or set "
                       "max_turns = 1");
  if (!after_tool.empty()) refused_["tool"] = after_tool;
  if (!after_user.empty()) refused_["user"] = after_user;
}

// Why messages of this role cannot follow any answer; empty: they can. Thoughts that the prompt has begun end within
// the answer.
std::string TurnTemplate::refusal(const std::string& role) const try {
  const std::vector<ChatMessage> messages = {message_of(role)};
  std::string failure;
  const auto works = [&](const auto& check) {
    try {
      return check();
    } catch (const DataError& error) {
      failure = error.what();
      return false;
    }
  };
  for (const std::string& answer : {std::string(kAnswer), cat("A thought.\n</think>\n\n", kAnswer)})
    if (works([&] { return shows(answer, plain_answer(answer), messages); })) return {};
  if (role == "tool" && works([&] {
        const std::string text = render(call_of_tool(), messages).text;
        end_of_given(call_of_tool(), text);
        return text.find("tool_7c1f") != text.npos;
      }))
    return {};
  if (!failure.empty()) return cat("refuses the conversation: ", failure);
  return "writes an answer otherwise than it was sampled";
} catch (const DataError& error) {
  return error.what();
}

RenderedChat TurnTemplate::render(const ChatMessage& answer, const std::vector<ChatMessage>& messages) const {
  std::vector<ChatMessage> all = {kQuestion, answer};
  all.insert(all.end(), messages.begin(), messages.end());
  return format_->chat.render_chat(all, {.add_generation_prompt = !messages.empty(),
                                         .bos_token = format_->bos_token,
                                         .eos_token = format_->eos_token,
                                         .now = kTrainingDay});
}

// Whether the template, given an answer in the form `as`, begins with the answer as it was sampled.
bool TurnTemplate::shows(const std::string& answer, const ChatMessage& as,
                         const std::vector<ChatMessage>& messages) const {
  const std::string text = render(as, messages).text;
  return text.starts_with(prompt_) &&
         std::string_view(text).substr(prompt_.size()).starts_with(without_space_at_end(answer));
}

// The longest special token with which the text begins; empty: none.
std::string_view TurnTemplate::special_token_at(std::string_view text) const {
  std::string_view longest;
  for (const std::string& token : format_->special_tokens)
    if (token.size() > longest.size() && text.starts_with(token)) longest = token;
  return longest;
}

// White space may come before the token.
TurnTemplate::End TurnTemplate::end_of_plain(std::string_view text) const {
  const size_t question = text.find(kQuestion.content), answer = text.find(kAnswer, std::min(question, text.size()));
  require<DataError>(question != text.npos && answer != text.npos, "the chat template ", format_->chat.name(),
                     " leaves out the conversation before the messages");
  const size_t behind = answer + kAnswer.size(), solid = text.find_first_not_of(" \t\r\n", behind);
  if (solid == text.npos) return {behind, behind};
  const std::string_view token = special_token_at(text.substr(solid));
  if (token.empty()) return {behind, behind};
  return {solid, solid + token.size()};
}

// The end of the text without the messages, which the text with them must begin with.
TurnTemplate::End TurnTemplate::end_of_given(const ChatMessage& answer, std::string_view text) const {
  const RenderedChat alone = render(answer, {});
  const std::string_view solid = without_space_at_end(alone.text);
  size_t longest = 0;
  for (const std::string& token : format_->special_tokens)
    if (solid.ends_with(token)) longest = std::max(longest, token.size());
  const std::string_view before = longest > 0 ? solid : std::string_view(alone.text);
  require<DataError>(text.starts_with(before), "the chat template ", format_->chat.name(),
                     " writes the assistant's message differently because of the messages that follow it");
  return {before.size() - longest, before.size()};
}

TurnTemplate::Turn TurnTemplate::next(const std::string& answer, bool by_token,
                                      std::vector<ChatMessage> messages) const {
  const auto is_answer = [](const ChatMessage& message) {
    const jinja::Value value = jinja::from_json(message.json, "a message");
    return *jinja::find(*value.entries(), "role")->string() == "assistant";
  };
  std::optional<ChatMessage> given;
  if (is_answer(messages.front())) {
    given = std::move(messages.front());
    messages.erase(messages.begin());
  }
  const jinja::Value first = jinja::from_json(messages.front().json, "a message");
  const auto refused = refused_.find(*jinja::find(*first.entries(), "role")->string());
  require<DataError>(refused == refused_.end(), "after a message of this role the chat template ",
                     refused == refused_.end() ? "" : refused->second);
  const RenderedChat chat = render(given ? *given : plain_answer(std::string(kAnswer)), messages);
  const std::string_view text = chat.text;
  const End end = given ? end_of_given(*given, text) : end_of_plain(text);
  // A token that ended the answer is encoded again, so that what follows is encoded as it is after that token.
  std::vector<TextSpan> literal;
  if (!format_->content_special_tokens)
    for (const TextSpan& span : chat.given)
      if (span.end > end.begin) literal.push_back({std::max(span.begin, end.begin) - end.begin, span.end - end.begin});
  Turn turn;
  tokenizer_->encode_to(text.substr(end.begin), turn.tokens, literal);
  if (by_token && end.end > end.begin) {
    require<DataError>(!turn.tokens.empty() &&
                           turn.tokens.front() == tokenizer_->token_id(text.substr(end.begin, end.end - end.begin)),
                       "the tokenizer has no token for ", text.substr(end.begin, end.end - end.begin));
    turn.tokens.erase(turn.tokens.begin());
  }
  try {
    turn.rewritten = !shows(answer, given ? *given : plain_answer(answer), messages);
  } catch (const DataError&) {
    turn.rewritten = true;
  }
  return turn;
}

}  // namespace witan
