#include "witan/data/conversations.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

using OrderedJson = nlohmann::ordered_json;  // templates write what a message holds in its order

constexpr int kMostRowDepth = 64;

struct Refused {
  std::string reason;
};

void insist(bool condition, const std::string& reason) {
  if (!condition) throw Refused{reason};
}

// The role of a {"from", "value"} row.
std::string role_of(const std::string& from) {
  if (from == "human") return "user";
  return from == "gpt" || from == "chatgpt" ? "assistant" : from;
}

OrderedJson message_of_pair(const OrderedJson& pair) {
  insist(pair.is_object() && pair.contains("from") && pair["from"].is_string() && pair.contains("value") &&
             pair["value"].is_string(),
         "\"conversations\" holds something else than {\"from\", \"value\"}");
  return {{"role", role_of(pair["from"].get<std::string>())}, {"content", pair["value"]}};
}

struct ParsedRow {
  std::vector<ChatMessage> messages;
  std::vector<bool> answers;  // whether the message is the assistant's
  std::string tools;
};

ParsedRow parse_row(std::string_view line, const std::string& key) {
  const auto shallow = [](int depth, OrderedJson::parse_event_t, OrderedJson&) {
    insist(depth <= kMostRowDepth, cat("nested deeper than ", kMostRowDepth));
    return true;
  };
  const OrderedJson row = OrderedJson::parse(line, shallow);
  insist(row.is_object(), "the row is not an object");
  const bool pairs = !row.contains(key) && row.contains("conversations");
  insist(pairs || row.contains(key), cat("no key \"", key, "\""));
  const OrderedJson& list = row[pairs ? "conversations" : key];
  insist(list.is_array(), cat("\"", pairs ? "conversations" : key, "\" is not a list of messages"));
  ParsedRow found;
  for (const OrderedJson& one : list) {
    const OrderedJson message = pairs ? message_of_pair(one) : one;
    insist(message.is_object() && message.contains("role") && message["role"].is_string(), "a message has no role");
    found.messages.push_back({{}, {}, message.dump()});
    found.answers.push_back(message["role"] == "assistant");
  }
  insist(std::ranges::find(found.answers, true) != found.answers.end(), "no message is the assistant's");
  if (row.contains("tools") && !row["tools"].is_null()) found.tools = row["tools"].dump();
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
    if (format_.chat.has_generation_blocks()) {
      std::erase_if(whole.generated, [](const TextSpan& span) { return span.begin == span.end; });
      insist(!whole.generated.empty(), "the chat template writes no answer");
      return {{std::move(whole.text), std::move(whole.generated)}};
    }
    if (!format_.answers_only) return {{whole.text, {{0, whole.text.size()}}}};
    return by_prefixes(std::move(whole.text));
  }

 private:
  RenderedChat render(size_t messages, bool prompt) const {
    return format_.chat.render_chat(std::span(row_.messages).first(messages), {.add_generation_prompt = prompt,
                                                                               .bos_token = format_.bos_token,
                                                                               .eos_token = format_.eos_token,
                                                                               .tools = row_.tools,
                                                                               .now = kTrainingDay});
  }

  std::vector<Conversation> by_prefixes(std::string whole) const {
    std::vector<Conversation> parts;
    Conversation together{std::move(whole), {}};
    bool continues = true;  // whether every answer stands in the whole text as it stands at its own end
    for (size_t i = 0; i < row_.messages.size(); ++i) {
      if (!row_.answers[i]) continue;
      std::string text = i + 1 == row_.messages.size() ? together.text : render(i + 1, false).text;
      const TextSpan answer = answer_in(text, i);
      if (answer.begin == answer.end) continue;
      continues = continues && together.text.starts_with(text);
      together.answers.push_back(answer);
      parts.push_back({std::move(text), {answer}});
    }
    insist(!parts.empty(), "the chat template writes no answer");
    if (!continues) return parts;
    return {std::move(together)};
  }

  // Of message `i`, which ends the text.
  TextSpan answer_in(std::string_view text, size_t i) const {
    const std::string prompt = render(i, true).text;
    size_t begin = prompt.size();
    if (!text.starts_with(prompt)) {
      begin = common_prefix(text, prompt);
      const std::string before = render(i, false).text;
      insist(begin >= before.size() && text.starts_with(before),
             "the chat template does not continue what it writes for the messages before an answer");
      begin = outside_of_tag(prompt, begin, before.size());
    }
    return {begin, std::max(begin, end_of_answer(text))};
  }

  // The last place up to `at`, and from `first` on, that is within no tag of the prompt, such as <think>, and no
  // character: that an answer begins with a tag's first letters is chance.
  static size_t outside_of_tag(std::string_view prompt, size_t at, size_t first) {
    const size_t tag = at == 0 ? prompt.npos : prompt.rfind('<', at - 1);
    if (tag != prompt.npos && tag >= first && prompt.substr(tag, at - tag).find('>') == prompt.npos) return tag;
    while (at > first && at < prompt.size() && (static_cast<unsigned char>(prompt[at]) & 0xC0) == 0x80) --at;
    return at;
  }

  // Behind the last special token, where only white space follows it.
  size_t end_of_answer(std::string_view text) const {
    const size_t last = text.find_last_not_of(" \t\r\n");
    if (last == text.npos) return text.size();
    const std::string_view solid = text.substr(0, last + 1);
    const bool ended =
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
  for (const std::string& token : special_tokens) add(token);
  return hasher.hex();
}

ConversationFormat conversation_format(FoundChatTemplate found, const Tokenizer& tokenizer) {
  ConversationFormat format{std::move(found.chat), std::move(found.bos_token), std::move(found.eos_token)};
  for (const AddedToken& token : tokenizer.spec().added)
    if (token.special) format.special_tokens.push_back(token.text);
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

ConversationRow read_conversations(std::string_view line, const ConversationFormat& format) {
  try {
    insist(find_invalid_utf8(line) == line.npos, "invalid UTF-8");
    const ParsedRow row = parse_row(line, format.messages_key);
    std::vector<Conversation> conversations = Renderer(row, format).run();
    if (!format.answers_only)
      for (Conversation& one : conversations) one.answers = {{0, one.text.size()}};
    return {std::move(conversations), {}};
  } catch (const Refused& refused) {
    return {{}, refused.reason};
  } catch (const OrderedJson::exception& error) {
    return {{}, cat("not valid JSON: ", error.what())};
  } catch (const DataError& error) {
    return {{}, cat("the chat template refuses it: ", error.what())};
  }
}

EncodedConversation encode_conversation(
    const Conversation& conversation,
    const std::function<void(std::string_view text, std::vector<int32_t>& out)>& encode_with_special) {
  EncodedConversation encoded;
  const std::string_view text = conversation.text;
  encode_with_special(text, encoded.tokens);
  encoded.loss.assign(encoded.tokens.size(), 0);
  // The token of the whole text in which the text's first `bytes` bytes end or with which the rest begins: where the
  // tokens of those bytes alone begin to differ.
  const auto token_at = [&](size_t bytes) {
    if (bytes == 0) return size_t{0};
    if (bytes == text.size()) return encoded.tokens.size();
    std::vector<int32_t> before;
    encode_with_special(text.substr(0, bytes), before);
    const auto differs =
        std::mismatch(before.begin(), before.end(), encoded.tokens.begin(), encoded.tokens.end()).second;
    return static_cast<size_t>(differs - encoded.tokens.begin());
  };
  for (const TextSpan& answer : conversation.answers) {
    const size_t begin = token_at(answer.begin), end = std::max(begin, token_at(answer.end));
    std::fill(encoded.loss.begin() + static_cast<ptrdiff_t>(begin), encoded.loss.begin() + static_cast<ptrdiff_t>(end),
              1);
  }
  return encoded;
}

}  // namespace witan
