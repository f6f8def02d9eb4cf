#include "witan/data/conversations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/tokenizer/tokenizer_json.h"

namespace witan {
namespace {

// As ChatML is written; with thoughts of earlier turns left out, as Qwen 3 does; with a prompt that begins a thought.
constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr const char* kForgetful =
    "{% for m in messages %}{% set c = m.content %}{% if m.role == 'assistant' and not loop.last %}"
    "{% set c = c.split('</think>')[-1] %}{% endif %}{{ '<|im_start|>' + m.role + '\\n' + c + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr const char* kThinking =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}";
constexpr const char* kGeneration =
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>"
    "{% endgeneration %}{% else %}{{ m.content }}<end>{% endif %}{% endfor %}";

ConversationFormat format(const char* source) {
  ConversationFormat made{ChatTemplate(source, "chat.jinja"), "<s>", "</s>"};
  made.special_tokens = {"<|im_start|>", "<|im_end|>", "<end>"};
  return made;
}

constexpr const char* kRow =
    R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                     {"role": "assistant", "content": "<t></think>b"}, {"role": "user", "content": "c"},
                     {"role": "assistant", "content": "d\n"}]})";

std::vector<std::string> answers(const Conversation& conversation) {
  std::vector<std::string> texts;
  for (const auto& [begin, end] : conversation.answers) texts.push_back(conversation.text.substr(begin, end - begin));
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Conversations, AnswersAreWhatFollowsTheGenerationPromptUpToTheirEnd) {
  const ConversationRow row = read_conversations(kRow, format(kChatMl));
  ASSERT_EQ(row.reason, "");
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(row.conversations[0].text,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
            "<|im_start|>assistant\n<t></think>b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\nd\n<|im_end|>\n");
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"<t></think>b<|im_end|>", "d\n<|im_end|>"}));
}

TEST(Conversations, GenerationBlocksSayWhatAnAnswerIs) {
  const ConversationRow row = read_conversations(kRow, format(kGeneration));
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"<t></think>b<end>", "d\n<end>"}));
}

TEST(Conversations, EachAnswerStandsAloneWhereTheTemplateForgetsEarlierThoughts) {
  const ConversationRow row = read_conversations(kRow, format(kForgetful));
  ASSERT_EQ(row.conversations.size(), 2u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"<t></think>b<|im_end|>"}));
  EXPECT_TRUE(row.conversations[0].text.ends_with("<t></think>b<|im_end|>\n"));
  EXPECT_EQ(answers(row.conversations[1]), (Texts{"d\n<|im_end|>"}));
  EXPECT_NE(row.conversations[1].text.find("assistant\nb<|im_end|>"), std::string::npos);
}

TEST(Conversations, APromptThatIsNotContinuedCountsAsFarAsItIsCommon) {
  const ConversationRow row = read_conversations(kRow, format(kThinking));
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"<t></think>b<|im_end|>", "d\n<|im_end|>"}));
}

TEST(Conversations, AllOfAConversationMayBeLearntFrom) {
  ConversationFormat all = format(kChatMl);
  all.answers_only = false;
  const ConversationRow row = read_conversations(kRow, all);
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{row.conversations[0].text}));
  EXPECT_NE(all.hash(), format(kChatMl).hash());
}

// qwen2.json, with these special tokens from id 381 on.
Tokenizer with_special(const std::vector<std::string>& tokens) {
  auto json = nlohmann::json::parse(read_file(fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/qwen2.json"));
  nlohmann::json token = json["added_tokens"][0];
  for (const std::string& text : tokens) {
    token["id"] = token["id"].get<int>() + 1;
    token["content"] = text;
    json["added_tokens"].push_back(token);
  }
  return Tokenizer(parse_tokenizer_json(json.dump(), "tokenizer.json"));
}

TEST(Conversations, TheEndOfATurnIsTheSpecialTokenBehindAnAnswer) {
  const auto end = [](const Tokenizer& tokenizer, const char* source, const std::string& eos = "") {
    return end_of_turn({ChatTemplate(source, "chat.jinja"), "", eos}, tokenizer);
  };
  const Tokenizer chat = with_special({"<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<|eot_id|>"}),
                  text = with_special({});
  EXPECT_EQ(end(with_special({"<|im_start|>", "<|im_end|>"}), kChatMl), 382) << "<|im_end|>";
  EXPECT_EQ(end(chat, kThinking), 382);
  EXPECT_EQ(end(chat, kChatMl), 383) << "the longest one, as the tokenizer takes it";
  constexpr const char* kLlama =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n\\n' + m.content | trim + ' <|eot_id|>' }}{% endfor %}"
      "<|im_end|>";
  EXPECT_EQ(end(chat, kLlama), 384) << "the first one";
  EXPECT_EQ(end(chat, "{% for m in messages %}{{ m.content }}<|im_end|> <|eot_id|>{% endfor %}"), 382)
      << "in whatever order they were added";
  EXPECT_EQ(end(text, "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", "<|endoftext|>"), 380);
  EXPECT_EQ(end(text, kChatMl), std::nullopt) << "no token of its own ends a turn";
  EXPECT_EQ(end(chat, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"), std::nullopt);
  EXPECT_EQ(end(chat, "{{ raise_exception('no') }}"), std::nullopt);
  EXPECT_EQ(end(chat, "<|im_end|>"), std::nullopt) << "the answer is not written";
}

TEST(Conversations, PairsOfFromAndValueAreMessages) {
  const ConversationRow row = read_conversations(
      R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]})", format(kChatMl));
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(row.conversations[0].text, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nr<|im_end|>\n");
  const ConversationRow other = read_conversations(
      R"({"conversations": [{"from": "user", "value": "q"}, {"from": "chatgpt", "value": "r"}]})", format(kChatMl));
  ASSERT_EQ(other.conversations.size(), 1u) << other.reason;
  EXPECT_EQ(other.conversations[0].text, row.conversations[0].text);
}

// A template that writes no end of a message says nothing for an answer without a content.
TEST(Conversations, EmptyAnswersAreNone) {
  const char* bare = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const ConversationRow row = read_conversations(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""},
                       {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]})",
      format(bare));
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"c"}));
  const char* silent = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]})";
  EXPECT_EQ(read_conversations(silent, format(bare)).reason, "the chat template writes no answer");
}

TEST(Conversations, ToolsComeWithTheRow) {
  const ConversationRow row = read_conversations(
      R"({"tools": [{"z": 1, "a": 2}], "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]})",
      format("{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"));
  ASSERT_EQ(row.conversations.size(), 1u) << row.reason;
  EXPECT_EQ(row.conversations[0].text, R"([{"z": 1, "a": 2}]qr)");
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"r"}));
}

TEST(Conversations, UnusableRowsSayWhy) {
  const auto reason = [](const char* line, const char* source = kChatMl) {
    return read_conversations(line, format(source)).reason;
  };
  EXPECT_EQ(reason("[]"), "the row is not an object");
  EXPECT_EQ(reason(R"({"text": "a"})"), "no key \"messages\"");
  EXPECT_EQ(reason(R"({"messages": "a"})"), "\"messages\" is not a list of messages");
  EXPECT_EQ(reason(R"({"messages": [{"content": "a"}]})"), "a message has no role");
  EXPECT_EQ(reason(R"({"messages": [{"role": "user", "content": "a"}]})"), "no message is the assistant's");
  EXPECT_EQ(reason("{\"messages\": \"\xff\"}"), "invalid UTF-8");
  EXPECT_TRUE(reason("{\"messages\"").starts_with("not valid JSON: "));
  EXPECT_EQ(reason(R"({"messages": [{"role": "assistant", "content": "a"}]})", "{{ raise_exception('take turns') }}"),
            "the chat template refuses it: chat.jinja:1: take turns");
  EXPECT_EQ(reason(R"({"messages": [{"role": "assistant"}]})"),
            "the chat template refuses it: chat.jinja:1: + does not take a string and content, which is undefined,");
}

// Letters are tokens, but "\n\n" and <|im_end|> are one each.
void encode(std::string_view text, std::vector<int32_t>& out) {
  while (!text.empty()) {
    const std::string_view end = "<|im_end|>";
    const size_t size = text.starts_with(end) ? end.size() : text.starts_with("\n\n") ? 2 : 1;
    out.push_back(size == 1 ? text[0] : size == 2 ? 200 : 201);
    text.remove_prefix(size);
  }
}

TEST(Conversations, MarksTheTokensOfAnswersEvenWhereTheyJoinThePrompt) {
  const Conversation conversation{"q\n\na<|im_end|>\n\nx", {{2, 14}}};  // from the second line feed on
  const EncodedConversation encoded = encode_conversation(conversation, encode);
  EXPECT_EQ(encoded.tokens, (std::vector<int32_t>{'q', 200, 'a', 201, 200, 'x'}));
  EXPECT_EQ(encoded.loss, (std::vector<int32_t>{0, 1, 1, 1, 0, 0}));
  const EncodedConversation whole = encode_conversation({"ab", {{0, 2}}}, encode);
  EXPECT_EQ(whole.loss, (std::vector<int32_t>{1, 1}));
}

// The prompt ends with "è" (C3 A8) where the answer has "à" (C3 A0).
TEST(Conversations, AnAnswerBeginsWithAWholeCharacter) {
  const ConversationRow row = read_conversations(
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "à"}]})",
      format("{% for m in messages %}{{ 'A:é' if m.role == 'assistant' else 'U:' }}{{ m.content }}{% endfor %}"
             "{% if add_generation_prompt %}A:éè{% endif %}"));
  ASSERT_EQ(row.reason, "");
  EXPECT_EQ(answers(row.conversations[0]), Texts{"à"});
}

}  // namespace
}  // namespace witan
