#include "witan/data/corpus/conversations.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/data/corpus/conversation_row.h"
#include "witan/data/corpus/preferences.h"
#include "witan/tokenizer/chat/chat_template.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

using jinja::Entries;
using jinja::Value;

void insist(bool condition, const std::string& reason) {
  if (!condition) throw Refused{reason};
}

const Value* member(const Value& object, std::string_view key) {
  const Entries* entries = object.entries();
  const Value* found = entries ? jinja::find(*entries, key) : nullptr;
  return found && !found->is_none() ? found : nullptr;
}

namespace {

// The keys with which rows say whether a message is learnt from: OpenAI's and Mistral's, axolotl's, ms-swift's.
constexpr std::array<std::string_view, 5> kMarks = {"weight", "train", "trainable", "training", "loss"};

// Bounds of weights other than 0, within which float16 has three digits.
constexpr double kLeastWeight = 0.001, kMostWeight = 1000;

// The message's own weight in the loss; nothing: it has none.
std::optional<float> weight_of_message(const Value& message) {
  std::optional<float> found;
  for (const std::string_view key : kMarks) {
    const Value* mark = member(message, key);
    if (!mark) continue;
    const double weight = is_number(*mark) ? number_of(*mark) : -1;
    const bool plain = weight == 0 || weight == 1, fits = weight >= kLeastWeight && weight <= kMostWeight;
    insist(plain || (key == "weight" && fits),
           cat("a message's ", key, " is ", mark->string() ? *mark->string() : str(*mark), ": ",
               key == "weight" ? cat("it must be 0, or a number between ", kLeastWeight, " and ", kMostWeight)
                               : "only 0 and 1, or false and true, are supported"));
    insist(!found || *found == static_cast<float>(weight),
           "a message says in two ways whether it is learnt from, and they differ");
    found = static_cast<float>(weight);
  }
  return found;
}

// The role of a {"from", "value"} row.
std::string role_of(const std::string& from) {
  if (from == "human") return "user";
  return from == "gpt" || from == "chatgpt" ? "assistant" : from;
}

Value message_of(const std::string& role, const Value& content) {
  return Value::dict({{Value::text("role"), Value::text(role)}, {Value::text("content"), content}});
}

Value message_of_pair(const Value& pair) {
  const Value *from = member(pair, "from"), *value = member(pair, "value");
  insist(from && from->string() && value && value->string(),
         "\"conversations\" holds something else than {\"from\", \"value\"}");
  Entries message = *message_of(role_of(*from->string()), *value).entries();
  for (const std::string_view key : kMarks)
    if (const Value* mark = member(pair, key)) message.emplace_back(Value::text(std::string(key)), *mark);
  return Value::dict(std::move(message));
}

Value without_marks(const Value& message) {
  Entries entries = *message.entries();
  std::erase_if(entries,
                [](const auto& entry) { return std::ranges::find(kMarks, *entry.first.string()) != kMarks.end(); });
  return Value::dict(std::move(entries));
}

struct ParsedRow {
  std::vector<ChatMessage> messages;
  std::vector<bool> assistant;  // whether the message is the assistant's
  std::vector<float> weights;   // of the message in the loss, if it is
  std::string tools;

  bool learns(size_t i) const { return assistant[i] && weights[i] > 0; }
  bool has_weights() const {
    return std::ranges::any_of(weights, [](float weight) { return weight != 1; });
  }
};

void add_message(ParsedRow& row, const Value& message, bool answers_only) {
  const Value* role = member(message, "role");
  insist(role && role->string(), "a message has no role");
  const bool assistant = *role->string() == "assistant";
  const auto weight = weight_of_message(message);
  insist(assistant || !weight || *weight == (answers_only ? 0 : 1),
         answers_only ? cat("a message of the role ", *role->string(),
                            " is marked to be learnt from, but only the assistant's are (loss_on = answers)")
                      : cat("a message of the role ", *role->string(),
                            *weight == 0 ? " is marked not to be learnt from" : cat(" has a weight of ", *weight),
                            ", but all that is not the assistant's is learnt from alike (loss_on = all)"));
  row.messages.push_back({{}, {}, to_json(without_marks(normal_message(message)))});
  row.assistant.push_back(assistant);
  row.weights.push_back(assistant ? weight.value_or(1.0f) : 1.0f);
}

// The only member of a row with one of these names, and its name; null: it has none of them.
std::pair<const Value*, std::string_view> only_member(const Value& row, std::span<const std::string_view> names,
                                                      std::string_view what) {
  std::pair<const Value*, std::string_view> found = {};
  for (const std::string_view name : names) {
    const Value* one = member(row, name);
    insist(!one || !found.first, cat("\"", found.second, "\" and \"", name, "\" may both be the ", what,
                                     ": leave one of them out, or write \"messages\""));
    if (one) found = {one, name};
  }
  return found;
}

// The messages of a row with a prompt and its answer; undefined if it lacks one of them.
Value prompt_and_answer(const Value& row) {
  const auto [prompt, prompt_name] = only_member(row, kPromptKeys, "prompt");
  const auto [answer, answer_name] = only_member(row, kAnswerKeys, "answer");
  if (!prompt || !answer) return {};
  const Value* input = member(row, "input");
  insist(!input || (input->string() && input->string()->empty()),
         cat("\"input\" stands beside \"", prompt_name, "\": write one text of both, or \"messages\""));
  jinja::Items messages;
  const auto add = [&](const Value& given, const char* role, std::string_view name) {
    const Value decoded = decoded_messages(given);
    if (const auto* list = decoded.sequence();
        list && std::ranges::all_of(*list->items, [](const Value& one) { return one.entries(); }))
      return void(messages.insert(messages.end(), list->items->begin(), list->items->end()));
    const bool number = is_number(given) && !std::holds_alternative<bool>(given.variant());
    insist(given.string() || number, cat("\"", name, "\" is neither a text nor a list of messages"));
    messages.push_back(message_of(role, number ? Value::text(str(given)) : given));
  };
  add(*prompt, "user", prompt_name);
  add(*answer, "assistant", answer_name);
  return Value::list(std::move(messages));
}

ParsedRow parse_row(const Value& row, const ConversationFormat& format) {
  const Value *own = jinja::find(*row.entries(), format.messages_key),
              *pairs = own ? nullptr : jinja::find(*row.entries(), "conversations");
  const Value texts = own || pairs ? Value() : prompt_and_answer(row);
  insist(own || pairs || !texts.is_undefined(),
         cat("no key \"", format.messages_key, "\", nor a prompt and its answer"));
  const Value list = own || pairs ? decoded_messages(own ? *own : *pairs) : texts;
  insist(list.sequence() != nullptr,
         cat("\"", pairs ? "conversations" : format.messages_key, "\" is not a list of messages"));
  ParsedRow found;
  for (const Value& one : *list.sequence()->items)
    add_message(found, pairs ? message_of_pair(one) : one, format.answers_only);
  insist(std::ranges::find(found.assistant, true) != found.assistant.end(), "no message is the assistant's");
  bool learns = !format.answers_only;
  for (size_t i = 0; i < found.messages.size(); ++i) learns |= found.learns(i);
  insist(learns, "every answer is marked not to be learnt from");
  if (const Value* tools = member(row, "tools"))
    if (const Value normal = normal_tools(*tools); !normal.is_none()) found.tools = to_json(normal);
  return found;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// One row, rendered as far as it is needed.
class Renderer {
 public:
  Renderer(const ParsedRow& row, const ConversationFormat& format) : row_(row), format_(format) {}

  std::vector<Conversation> run() {
    RenderedChat whole = render(row_.messages.size(), false);
    if (format_.chat.has_generation_blocks()) return by_blocks(std::move(whole));
    if (format_.answers_only || row_.has_weights()) return by_prefixes(std::move(whole));
    const size_t size = whole.text.size();
    return {{std::move(whole.text), {{0, size}}, std::move(whole.given)}};
  }

 private:
  RenderedChat render(size_t messages, bool prompt) const {
    try {
      return format_.chat.render_chat(std::span(row_.messages).first(messages), {.add_generation_prompt = prompt,
                                                                                 .bos_token = format_.bos_token,
                                                                                 .eos_token = format_.eos_token,
                                                                                 .tools = row_.tools,
                                                                                 .now = kTrainingDay});
    } catch (const DataError& error) {
      throw Refused{cat("the chat template refuses it: ", error.what())};
    }
  }

  // The text that an assistant's message writes, and its weight.
  struct Answer {
    TextSpan span;
    float weight;
  };

  // A conversation that learns from these answers, which are in order, and with loss_on = all from all other text.
  Conversation learning_from(const std::vector<Answer>& answers, RenderedChat chat) const {
    Conversation made{std::move(chat.text), {}, std::move(chat.given)};
    const auto add = [&](size_t begin, size_t end, float weight) {
      if (begin >= end || weight == 0) return;
      made.answers.push_back({begin, end});
      made.weights.push_back(weight);
    };
    size_t done = 0;
    for (const auto& [span, weight] : answers) {
      if (!format_.answers_only) add(done, span.begin, 1);
      add(std::max(done, span.begin), span.end, weight);
      done = std::max(done, span.end);
    }
    if (!format_.answers_only) add(done, made.text.size(), 1);
    return made;
  }

  // Takes the text of {% generation %} blocks as answers. If messages have weights, the messages before each block are
  // rendered to find the message that the block belongs to.
  std::vector<Conversation> by_blocks(RenderedChat whole) const {
    std::vector<Answer> answers;
    const auto add = [&](const TextSpan& block, float weight) {
      if (block.begin < block.end) answers.push_back({block, weight});
    };
    size_t block = 0;
    for (size_t i = 0; row_.has_weights() && i < row_.messages.size(); ++i) {
      const bool last = i + 1 == row_.messages.size();
      const size_t end = last ? whole.generated.size() : render(i + 1, false).generated.size();
      insist(end >= block && end <= whole.generated.size(),
             "the chat template writes an answer in another number of blocks once others follow, so that which "
             "message is not learnt from cannot be told");
      for (; block < end; ++block) add(whole.generated[block], row_.weights[i]);
    }
    for (; block < whole.generated.size(); ++block) add(whole.generated[block], 1);
    insist(std::ranges::any_of(answers, [](const Answer& answer) { return answer.weight > 0; }),
           "the chat template writes no answer");
    if (!format_.answers_only) std::erase_if(answers, [](const Answer& answer) { return answer.weight == 1; });
    return {learning_from(answers, std::move(whole))};
  }

  // With loss_on = all the answers are those that have other weights than the rest.
  std::vector<Conversation> by_prefixes(RenderedChat whole) const {
    std::vector<Conversation> parts;
    std::vector<Answer> answers;
    bool continues = true;  // whether the text rendered up to each answer is a prefix of the whole text
    for (size_t i = 0; i < row_.messages.size(); ++i) {
      if (format_.answers_only ? !row_.learns(i) : row_.weights[i] == 1) continue;
      RenderedChat part =
          i + 1 == row_.messages.size() ? RenderedChat{whole.text, {}, whole.given} : render(i + 1, false);
      const Answer answer{answer_in(part, i), row_.weights[i]};
      if (answer.span.begin == answer.span.end) continue;
      continues = continues && whole.text.starts_with(part.text);
      answers.push_back(answer);
      parts.push_back(learning_from({answer}, std::move(part)));
    }
    insist(continues || format_.answers_only,
           "the chat template writes an answer differently once others follow, so that it cannot be left "
           "out of what is learnt from (loss_on = all)");
    insist(!parts.empty() || !format_.answers_only, "the chat template writes no answer");
    if (!continues) return parts;
    return {learning_from(answers, std::move(whole))};
  }

  // The answer of message `i`, which ends the text.
  TextSpan answer_in(const RenderedChat& part, size_t i) const {
    const std::string_view text = part.text;
    const std::string prompt = render(i, true).text;
    size_t begin = prompt.size();
    if (!text.starts_with(prompt)) {
      begin = common_prefix(text, prompt);
      const std::string before = render(i, false).text;
      insist(begin >= before.size() && text.starts_with(before),
             "the chat template does not continue what it writes for the messages before an answer");
      begin = outside_of_tag(prompt, begin, before.size());
    }
    return {begin, std::max(begin, end_of_answer(part))};
  }

  // The last place up to `at`, and from `first` on, that is within no tag of the prompt, such as <think>, and no
  // character: that an answer begins with a tag's first letters is chance.
  static size_t outside_of_tag(std::string_view prompt, size_t at, size_t first) {
    const size_t tag = at == 0 ? prompt.npos : prompt.rfind('<', at - 1);
    if (tag != prompt.npos && tag >= first && prompt.substr(tag, at - tag).find('>') == prompt.npos) return tag;
    while (at > first && at < prompt.size() && (static_cast<unsigned char>(prompt[at]) & 0xC0) == 0x80) --at;
    return at;
  }

  // The end of the last special token if only white space follows it. A token that the message spells out is text.
  size_t end_of_answer(const RenderedChat& part) const {
    const std::string_view text = part.text;
    const size_t last = text.find_last_not_of(" \t\r\n");
    if (last == text.npos) return text.size();
    const std::string_view solid = text.substr(0, last + 1);
    const bool spelled =
        !part.given.empty() && part.given.back().end >= solid.size() && part.given.back().begin <= last;
    const bool ended =
        (!spelled || format_.content_special_tokens) &&
        std::ranges::any_of(format_.special_tokens, [&](const std::string& token) { return solid.ends_with(token); });
    return ended ? solid.size() : text.size();
  }

  const ParsedRow& row_;
  const ConversationFormat& format_;
};

}  // namespace

std::string ConversationFormat::hash() const {
  Hasher hasher;
  const auto add = [&](const std::string& text) {
    const uint64_t size = text.size();
    hasher.update(&size, sizeof size);
    hasher.update(text.data(), text.size());
  };
  for (const std::string* text : {&chat.source(), &bos_token, &eos_token, &messages_key}) add(*text);
  add(answers_only ? "answers" : "all");
  add("weights of any size");
  add("prompts and answers");
  add(content_special_tokens ? "special tokens of contents"
                             : "contents are text");  // rows as normal_message() has them
  if (preferences) add("preferences, with " + end_of_text);
  for (const std::string& token : special_tokens) add(token);
  return hasher.hex();
}

ConversationFormat conversation_format(FoundChatTemplate found, const Tokenizer& tokenizer) {
  ConversationFormat format{std::move(found.chat), std::move(found.bos_token), std::move(found.eos_token)};
  for (const AddedToken& token : tokenizer.spec().added)
    if (token.special) format.special_tokens.push_back(token.text);
  if (const auto end = tokenizer.end_of_text()) format.end_of_text = tokenizer.token_bytes(*end);
  return format;
}

std::optional<int32_t> end_of_turn(const FoundChatTemplate& found, const Tokenizer& tokenizer) try {
  const std::string answer = "Answer.";
  const std::vector<ChatMessage> messages = {{"user", "Question?"}, {"assistant", answer}};
  const std::string text =
      found.chat.render(messages, {.bos_token = found.bos_token, .eos_token = found.eos_token, .now = kTrainingDay});
  const size_t begin = text.rfind(answer);
  if (begin == text.npos) return std::nullopt;
  const std::string_view behind = std::string_view(text).substr(begin + answer.size());
  std::string_view first;  // of several at the same place the longest, as the tokenizer takes it
  size_t at = behind.npos;
  for (const AddedToken& token : tokenizer.spec().added) {
    const size_t place = token.special ? behind.find(token.text) : behind.npos;
    if (place > at || place == behind.npos || (place == at && token.text.size() < first.size())) continue;
    at = place;
    first = token.text;
  }
  return at == behind.npos ? std::nullopt : tokenizer.token_id(first);
} catch (const DataError&) {
  return std::nullopt;
}

std::vector<Conversation> conversations_of(const Value& row, const ConversationFormat& format) {
  const ParsedRow parsed = parse_row(row, format);
  return Renderer(parsed, format).run();
}

ConversationRow read_conversations(std::string_view line, const ConversationFormat& format) {
  try {
    insist(find_invalid_utf8(line) == line.npos, "invalid UTF-8");
    const Value row = jinja::from_json(line, "the row");
    insist(row.entries() != nullptr, "the row is not an object");
    std::vector<Conversation> conversations = format.preferences ? pair_of(row, format) : conversations_of(row, format);
    if (format.content_special_tokens)
      for (Conversation& one : conversations) one.literal.clear();
    return {std::move(conversations), {}};
  } catch (const Refused& refused) {
    return {{}, refused.reason};
  } catch (const DataError& error) {
    return {{}, error.what()};
  }
}

EncodedConversation encode_conversation(
    const Conversation& conversation,
    const std::function<void(std::string_view text, std::span<const TextSpan> literal, std::vector<int32_t>& out)>&
        encode_chat) {
  EncodedConversation encoded;
  const std::string_view text = conversation.text;
  encode_chat(text, conversation.literal, encoded.tokens);
  encoded.loss.assign(encoded.tokens.size(), 0.0f);
  // The token of the whole text in which the text's first `bytes` bytes end or with which the rest begins: where the
  // tokens of those bytes alone begin to differ.
  const auto token_at = [&](size_t bytes) {
    if (bytes == 0) return size_t{0};
    if (bytes == text.size()) return encoded.tokens.size();
    std::vector<int32_t> before;
    encode_chat(text.substr(0, bytes), conversation.literal, before);
    const auto differs =
        std::mismatch(before.begin(), before.end(), encoded.tokens.begin(), encoded.tokens.end()).second;
    return static_cast<size_t>(differs - encoded.tokens.begin());
  };
  for (size_t i = 0; i < conversation.answers.size(); ++i) {
    const TextSpan& answer = conversation.answers[i];
    const size_t begin = token_at(answer.begin), end = std::max(begin, token_at(answer.end));
    std::fill(encoded.loss.begin() + static_cast<ptrdiff_t>(begin), encoded.loss.begin() + static_cast<ptrdiff_t>(end),
              conversation.weights.empty() ? 1.0f : conversation.weights[i]);
  }
  if (conversation.pair != PairPlace::none && !encoded.loss.empty())
    encoded.loss.front() = static_cast<float>(conversation.pair);
  return encoded;
}

}  // namespace witan
