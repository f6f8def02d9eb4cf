#include "witan/data/corpus/preferences.h"

#include <algorithm>
#include <utility>

#include "witan/base/text.h"
#include "witan/data/corpus/conversation_row.h"

namespace witan {
namespace {

using jinja::Entries;
using jinja::Items;
using jinja::Value;

constexpr const char *kPrompt = "prompt", *kChosen = "chosen", *kRejected = "rejected";

// A member as it was meant: columns of tables hold lists of messages as JSON in strings.
Value decoded_member(const Value& row, const char* key) {
  const Value* found = member(row, key);
  if (!found) return {};
  const Value decoded = decoded_messages(*found);
  const auto* list = decoded.sequence();
  const bool messages = list && std::ranges::all_of(*list->items, [](const Value& one) { return one.entries(); });
  return messages || !found->string() ? decoded : *found;
}

// The length of what two texts have in common, up to the last white space in it.
size_t common_prompt(const std::string& a, const std::string& b) {
  const auto common = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const size_t space = a.substr(0, common).find_last_of(" \t\r\n");
  return space == a.npos ? 0 : space;
}

Conversation text_of(const std::string& prompt, const std::string& answer, const char* key,
                     const ConversationFormat& format) {
  insist(!answer.empty(), cat("\"", key, "\" is empty"));
  const std::string& end = format.eos_token.empty() ? format.end_of_text : format.eos_token;
  Conversation made;
  made.text = prompt + answer;
  made.literal = {{0, made.text.size()}};
  made.text += end;
  made.answers = {{prompt.size(), made.text.size()}};
  made.weights = {1};
  return made;
}

std::vector<Conversation> pair_of_texts(const Value& prompt, const std::string& chosen, const std::string& rejected,
                                        const ConversationFormat& format) {
  if (const std::string* given = prompt.string())
    return {text_of(*given, chosen, kChosen, format), text_of(*given, rejected, kRejected, format)};
  insist(prompt.is_undefined(), "\"prompt\" is neither a text nor a list of messages");
  const size_t begin = common_prompt(chosen, rejected);
  insist(begin > 0, "there is no \"prompt\", and \"chosen\" and \"rejected\" do not begin alike");
  const std::string shared = chosen.substr(0, begin);
  return {text_of(shared, chosen.substr(begin), kChosen, format),
          text_of(shared, rejected.substr(begin), kRejected, format)};
}

// The messages of an answer: a list, or a text of the assistant's.
Items messages_of(const Value& answer, const char* key) {
  if (const auto* list = answer.sequence()) return *list->items;
  insist(answer.string() != nullptr, cat("\"", key, "\" is neither a text nor a list of messages"));
  return {Value::dict({{Value::text("role"), Value::text("assistant")}, {Value::text("content"), answer}})};
}

bool is_assistant(const Value& message) {
  const Value* role = member(message, "role");
  return role && role->string() && *role->string() == "assistant";
}

// Renders messages, of which those of the assistant from `prompt` on are learnt from.
Conversation rendered(const Items& messages, size_t prompt, const Value& row, const char* key,
                      const ConversationFormat& format) {
  Items marked;
  bool answers = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    insist(messages[i].entries() != nullptr, cat("\"", key, "\" holds something else than messages"));
    const bool own = is_assistant(messages[i]);
    answers |= own && i >= prompt;
    Entries entries = *messages[i].entries();
    if (own) jinja::set_entry(entries, Value::text("weight"), Value::integer(int64_t{i >= prompt}));
    marked.push_back(Value::dict(std::move(entries)));
  }
  insist(answers, cat("\"", key, "\" has no message of the assistant after the prompt"));
  Entries conversation = {{Value::text(format.messages_key), Value::list(std::move(marked))}};
  if (const Value* tools = member(row, "tools")) conversation.emplace_back(Value::text("tools"), *tools);
  std::vector<Conversation> made = conversations_of(Value::dict(std::move(conversation)), format);
  insist(made.size() == 1,
         cat("the chat template writes the answers of \"", key,
             "\" differently once others follow, so that they are no one text: give a pair for each of them"));
  return std::move(made.front());
}

std::vector<Conversation> pair_of_messages(const Value& prompt, const Value& chosen, const Value& rejected,
                                           const Value& row, const ConversationFormat& format) {
  Items preferred = messages_of(chosen, kChosen), other = messages_of(rejected, kRejected);
  size_t begin = 0;
  if (const auto* given = prompt.sequence()) {
    begin = given->items->size();
    preferred.insert(preferred.begin(), given->items->begin(), given->items->end());
    other.insert(other.begin(), given->items->begin(), given->items->end());
  } else {
    // A prompt that is a text beside whole conversations repeats what these begin with.
    insist(chosen.sequence() && rejected.sequence(),
           "\"chosen\" and \"rejected\" must both be texts, or both lists of messages, if \"prompt\" is no list");
    while (begin < std::min(preferred.size(), other.size()) && equal(preferred[begin], other[begin])) ++begin;
    insist(begin > 0, "\"chosen\" and \"rejected\" do not begin with the same messages, and \"prompt\" is no list");
  }
  return {rendered(preferred, begin, row, kChosen, format), rendered(other, begin, row, kRejected, format)};
}

}  // namespace

std::vector<Conversation> pair_of(const Value& row, const ConversationFormat& format) {
  const Value prompt = decoded_member(row, kPrompt), chosen = decoded_member(row, kChosen),
              rejected = decoded_member(row, kRejected);
  insist(!chosen.is_undefined(), "no key \"chosen\"");
  insist(!rejected.is_undefined(), "no key \"rejected\"");
  std::vector<Conversation> pair = chosen.string() && rejected.string() && !prompt.sequence()
                                       ? pair_of_texts(prompt, *chosen.string(), *rejected.string(), format)
                                       : pair_of_messages(prompt, chosen, rejected, row, format);
  insist(pair.front().text != pair.back().text, "\"chosen\" and \"rejected\" are the same: neither can be preferred");
  pair.front().pair = PairPlace::chosen;
  pair.back().pair = PairPlace::rejected;
  return pair;
}

}  // namespace witan
