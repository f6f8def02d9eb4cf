#include "witan/data/corpus/conversations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/prepare/text_encoder.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

// Templates like ChatML; like Qwen 3, which drops earlier thoughts; and one whose generation prompt begins a thought.
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

TEST(Conversations, AnswersFollowTheGenerationPrompt) {
  const ConversationRow row = read_conversations(kRow, format(kChatMl));
  ASSERT_EQ(row.reason, "");
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(row.conversations[0].text,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
            "<|im_start|>assistant\n<t></think>b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\nd\n<|im_end|>\n");
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"<t></think>b<|im_end|>", "d\n<|im_end|>"}));
}

TEST(Conversations, GenerationBlocksMarkAnswers) {
  const ConversationRow row = read_conversations(kRow, format(kGeneration));
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"<t></think>b<end>", "d\n<end>"}));
}

TEST(Conversations, TemplatesThatDropThoughtsSplitConversations) {
  const ConversationRow row = read_conversations(kRow, format(kForgetful));
  ASSERT_EQ(row.conversations.size(), 2u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"<t></think>b<|im_end|>"}));
  EXPECT_TRUE(row.conversations[0].text.ends_with("<t></think>b<|im_end|>\n"));
  EXPECT_EQ(answers(row.conversations[1]), (Texts{"d\n<|im_end|>"}));
  EXPECT_NE(row.conversations[1].text.find("assistant\nb<|im_end|>"), std::string::npos);
}

TEST(Conversations, PartlyMatchingPromptsCountUpToTheirCommonPart) {
  const ConversationRow row = read_conversations(kRow, format(kThinking));
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"<t></think>b<|im_end|>", "d\n<|im_end|>"}));
}

TEST(Conversations, TheWholeConversationCanBeTrainedOn) {
  ConversationFormat all = format(kChatMl);
  all.answers_only = false;
  const ConversationRow row = read_conversations(kRow, all);
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(answers(row.conversations[0]), (Texts{row.conversations[0].text}));
  EXPECT_NE(all.hash(), format(kChatMl).hash());
}

// qwen2.json with these special tokens, whose ids start at 381.
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

TEST(Conversations, TheEndOfTurnIsTheSpecialTokenAfterAnAnswer) {
  const auto end = [](const Tokenizer& tokenizer, const char* source, const std::string& eos = "") {
    return end_of_turn({ChatTemplate(source, "chat.jinja"), "", eos}, tokenizer);
  };
  const Tokenizer chat = with_special({"<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<|eot_id|>"}),
                  text = with_special({});
  EXPECT_EQ(end(with_special({"<|im_start|>", "<|im_end|>"}), kChatMl), 382) << "<|im_end|>";
  EXPECT_EQ(end(chat, kThinking), 382);
  EXPECT_EQ(end(chat, kChatMl), 383) << "the longest match, as in the tokenizer";
  constexpr const char* kLlama =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n\\n' + m.content | trim + ' <|eot_id|>' }}{% endfor %}"
      "<|im_end|>";
  EXPECT_EQ(end(chat, kLlama), 384) << "the first one";
  EXPECT_EQ(end(chat, "{% for m in messages %}{{ m.content }}<|im_end|> <|eot_id|>{% endfor %}"), 382)
      << "independent of the order of addition";
  EXPECT_EQ(end(text, "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", "<|endoftext|>"), 380);
  EXPECT_EQ(end(text, kChatMl), std::nullopt) << "no special token ends a turn";
  EXPECT_EQ(end(chat, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"), std::nullopt);
  EXPECT_EQ(end(chat, "{{ raise_exception('no') }}"), std::nullopt);
  EXPECT_EQ(end(chat, "<|im_end|>"), std::nullopt) << "the template omits the answer";
}

TEST(Conversations, AcceptsFromAndValuePairs) {
  const ConversationRow row = read_conversations(
      R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]})", format(kChatMl));
  ASSERT_EQ(row.conversations.size(), 1u);
  EXPECT_EQ(row.conversations[0].text, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nr<|im_end|>\n");
  const ConversationRow other = read_conversations(
      R"({"conversations": [{"from": "user", "value": "q"}, {"from": "chatgpt", "value": "r"}]})", format(kChatMl));
  ASSERT_EQ(other.conversations.size(), 1u) << other.reason;
  EXPECT_EQ(other.conversations[0].text, row.conversations[0].text);
}

// A template without an end-of-turn mark writes nothing for an empty answer.
TEST(Conversations, AcceptsPromptsWithAnswers) {
  const std::string expected = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
  for (const char* row :
       {R"({"question": "a", "answer": "b"})", R"({"prompt": "a", "completion": "b", "data_source": "x"})",
        R"({"instruction": "a", "input": "", "output": "b"})", R"({"problem": "a", "solution": "b", "answer": null})",
        R"({"prompt": [{"role": "user", "content": "a"}], "response": "b"})",
        R"({"prompt": "[{\"role\": \"user\", \"content\": \"a\"}]", "answer": "b"})",
        R"({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]})"}) {
    const ConversationRow read = read_conversations(row, format(kChatMl));
    ASSERT_EQ(read.reason, "") << row;
    EXPECT_EQ(read.conversations.at(0).text, expected) << row;
    EXPECT_EQ(answers(read.conversations[0]), Texts{"b<|im_end|>"}) << row;
  }
  EXPECT_EQ(answers(read_conversations(R"({"problem": "a", "answer": 204})", format(kChatMl)).conversations.at(0)),
            Texts{"204<|im_end|>"});
  EXPECT_EQ(read_conversations(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}], "prompt": "x", "answer": "y", "question": "z"})",
                               format(kChatMl))
                .conversations.at(0)
                .text,
            expected)
      << "messages come first";
}

TEST(Conversations, RefusesAmbiguousPromptsAndAnswers) {
  const auto reason = [](const char* line) { return read_conversations(line, format(kChatMl)).reason; };
  EXPECT_EQ(reason(R"({"prompt": "a", "question": "b", "answer": "c"})"),
            "\"prompt\" and \"question\" may both be the prompt: leave one of them out, or write \"messages\"");
  EXPECT_EQ(reason(R"({"problem": "a", "solution": "b", "answer": "c"})"),
            "\"answer\" and \"solution\" may both be the answer: leave one of them out, or write \"messages\"");
  EXPECT_EQ(reason(R"({"instruction": "a", "input": "b", "output": "c"})"),
            "\"input\" stands beside \"instruction\": write one text of both, or \"messages\"");
  EXPECT_EQ(reason(R"({"prompt": "a", "answer": {"value": "c"}})"),
            "\"answer\" is neither a text nor a list of messages");
  EXPECT_EQ(reason(R"({"prompt": "a", "answer": true})"), "\"answer\" is neither a text nor a list of messages");
  EXPECT_EQ(reason(R"({"prompt": "a"})"), "no key \"messages\", nor a prompt and its answer");
}

TEST(Conversations, SkipsEmptyAnswers) {
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

TEST(Conversations, ReadsToolsOfTheRow) {
  const ConversationRow row = read_conversations(
      R"({"tools": [{"z": 1, "a": 2}], "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]})",
      format("{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"));
  ASSERT_EQ(row.conversations.size(), 1u) << row.reason;
  EXPECT_EQ(row.conversations[0].text, R"([{"z": 1, "a": 2}]qr)");
  EXPECT_EQ(answers(row.conversations[0]), (Texts{"r"}));
}

constexpr const char* kCalls =
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}<end>{% endfor "
    "%}";

// JSON in strings, as in tables and OpenAI's API, is decoded like in the server.
TEST(Conversations, DecodesJsonInStrings) {
  const std::string decoded =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls":
         [{"function": {"name": "f", "arguments": {"id": 18446744073709551615}}}]}], "tools": [{"name": "f"}]})";
  const std::string strings[] = {
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls":
         [{"function": {"name": "f", "arguments": "{\"id\": 18446744073709551615}"}}]}], "tools": "[{\"name\": \"f\"}]"})",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, {"role": "assistant", "tool_calls":
         "[{\"function\": {\"name\": \"f\", \"arguments\": {\"id\": 18446744073709551615}}}]"}],
         "tools": ["{\"name\": \"f\"}"]})",
      R"({"messages": "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"tool_calls\":
         [{\"function\": {\"name\": \"f\", \"arguments\": {\"id\": 18446744073709551615}}}]}]", "tools": [{"name": "f"}]})"};
  const std::string text = R"([{"name": "f"}][user]q<end>[assistant]f{"id": 18446744073709551615}<end>)";
  const ConversationRow row = read_conversations(decoded, format(kCalls));
  ASSERT_EQ(row.conversations.size(), 1u) << row.reason;
  EXPECT_EQ(row.conversations[0].text, text);
  for (const std::string& line : strings) {
    std::string one_line = line;
    std::ranges::replace(one_line, '\n', ' ');
    const ConversationRow other = read_conversations(one_line, format(kCalls));
    ASSERT_EQ(other.conversations.size(), 1u) << other.reason << line;
    EXPECT_EQ(other.conversations[0].text, text) << line;
  }
}

// Covers a call without a function object around it, and no calls, which leave null content unchanged.
TEST(Conversations, AcceptsCallsWithoutAFunctionObject) {
  const auto text = [](const char* answer) {
    const ConversationRow row = read_conversations(
        cat(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls": )",
            answer, "}]}"),
        format("{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }};{% for c in m.tool_calls %}"
               "{{ c.name }}{{ c.arguments.id + 1 }}{% endfor %}{% endif %}{% endfor %}"));
    return row.conversations.empty() ? row.reason : row.conversations[0].text;
  };
  EXPECT_EQ(text(R"([{"name": "f", "arguments": "{\"id\": 1}"}, {"name": "g", "arguments": {"id": 2}}])"), ";f2g3");
  EXPECT_EQ(text("[]"), "None;");
}

TEST(Conversations, TreatsEmptyToolsAsNone) {
  const char* source = "{{ tools is none }}{% for m in messages %}{{ m.content }}{% endfor %}";
  for (const char* tools : {"[]", "null", "\"[]\""}) {
    const ConversationRow row = read_conversations(
        cat(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}], "tools": )",
            tools, "}"),
        format(source));
    ASSERT_EQ(row.conversations.size(), 1u) << row.reason;
    EXPECT_EQ(row.conversations[0].text, "Trueqr") << tools;
  }
}

std::string weighted(const std::string& first, const std::string& second) {
  return R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "BAD")" + first +
         R"(}, {"role": "user", "content": "v"}, {"role": "assistant", "content": "GOOD")" + second + "}]}";
}

TEST(Conversations, MessagesMarkWhetherTheyAreTrainedOn) {
  for (const char* mark : {R"(, "weight": 0)", R"(, "weight": 0.0)", R"(, "train": false)", R"(, "trainable": false)",
                           R"(, "training": false)", R"(, "loss": false, "weight": 0)"})
    for (const char* source : {kChatMl, kForgetful, kGeneration}) {
      const ConversationRow row = read_conversations(weighted(mark, R"(, "weight": 1)"), format(source));
      ASSERT_EQ(row.conversations.size(), 1u) << mark << row.reason;
      EXPECT_EQ(answers(row.conversations[0]), Texts{source == kGeneration ? "GOOD<end>" : "GOOD<|im_end|>"}) << mark;
      EXPECT_NE(row.conversations[0].text.find("BAD"), std::string::npos);
    }
  const ConversationRow plain =
      read_conversations(weighted(R"(, "weight": null)", R"(, "train": true)"), format(kChatMl));
  ASSERT_EQ(plain.conversations.size(), 1u) << plain.reason;
  EXPECT_EQ(answers(plain.conversations[0]).size(), 2u);
  const ConversationRow pairs = read_conversations(
      R"({"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "BAD", "weight": 0},
                            {"from": "human", "value": "v"}, {"from": "gpt", "value": "GOOD"}]})",
      format(kChatMl));
  ASSERT_EQ(pairs.conversations.size(), 1u) << pairs.reason;
  EXPECT_EQ(answers(pairs.conversations[0]), Texts{"GOOD<|im_end|>"});
}

TEST(Conversations, UnmarkedMessagesAreNeverTrainedOn) {
  for (const char* source : {kChatMl, kGeneration}) {
    ConversationFormat all = format(source);
    all.answers_only = false;
    const ConversationRow row = read_conversations(weighted(R"(, "weight": 0)", ""), all);
    ASSERT_EQ(row.conversations.size(), 1u) << row.reason;
    const Texts learnt = answers(row.conversations[0]);
    ASSERT_EQ(learnt.size(), 2u);
    EXPECT_EQ(learnt[0].find("BAD"), std::string::npos);
    EXPECT_NE(learnt[0].find("u"), std::string::npos);
    EXPECT_EQ(learnt[1].find("BAD"), std::string::npos);
    EXPECT_NE(learnt[1].find("GOOD"), std::string::npos);
  }
}

// The weights of letters within the conversation.
std::string weights_of(const Conversation& conversation, std::string_view letters) {
  const EncodedConversation encoded = encode_conversation(
      conversation, [](std::string_view text, std::span<const TextSpan>, std::vector<int32_t>& out) {
        out.insert(out.end(), text.begin(), text.end());
      });
  std::string found;
  for (size_t i = 0; i < encoded.tokens.size(); ++i)
    if (letters.find(static_cast<char>(encoded.tokens[i])) != letters.npos)
      found += cat(static_cast<char>(encoded.tokens[i]), encoded.loss[i], " ");
  return found;
}

TEST(Conversations, WeightsApplyToAllTokensOfAnAnswer) {
  for (const char* source : {kChatMl, kGeneration})
    for (const bool answers_only : {true, false}) {
      SCOPED_TRACE(cat(source, answers_only));
      ConversationFormat made = format(source);
      made.answers_only = answers_only;
      const auto row = read_conversations(weighted(R"(, "weight": 0.25)", R"(, "weight": 2)"), made);
      ASSERT_EQ(row.conversations.size(), 1u) << row.reason;
      EXPECT_EQ(weights_of(row.conversations[0], "BADGOvD"),
                answers_only ? "B0.25 A0.25 D0.25 v0 G2 O2 O2 D2 " : "B0.25 A0.25 D0.25 v1 G2 O2 O2 D2 ");
      const auto some = read_conversations(weighted(R"(, "weight": 0)", R"(, "weight": 0.5)"), made);
      ASSERT_EQ(some.conversations.size(), 1u) << some.reason;
      EXPECT_EQ(weights_of(some.conversations[0], "BADGOD"), "B0 A0 D0 G0.5 O0.5 O0.5 D0.5 ");
    }
  // Here each answer is a separate conversation.
  const ConversationRow each = read_conversations(
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "<t></think>BA", "weight": 0.25},
                       {"role": "user", "content": "v"}, {"role": "assistant", "content": "GO", "weight": 2}]})",
      format(kForgetful));
  ASSERT_EQ(each.conversations.size(), 2u) << each.reason;
  EXPECT_EQ(weights_of(each.conversations[0], "BAGO"), "B0.25 A0.25 ");
  EXPECT_EQ(weights_of(each.conversations[1], "BAGO"), "B0 A0 G2 O2 ");
}

TEST(Conversations, RefusesRowsWithUnusableMarks) {
  const auto reason = [](const std::string& row) { return read_conversations(row, format(kChatMl)).reason; };
  EXPECT_EQ(reason(weighted(R"(, "weight": -0.5)", "")),
            "a message's weight is -0.5: it must be 0, or a number between 0.001 and 1000");
  EXPECT_EQ(reason(weighted(R"(, "weight": 1e-9)", "")),
            "a message's weight is 1e-09: it must be 0, or a number between 0.001 and 1000");
  EXPECT_EQ(reason(weighted(R"(, "loss": 0.5)", "")),
            "a message's loss is 0.5: only 0 and 1, or false and true, are supported");
  EXPECT_EQ(reason(weighted(R"(, "train": "no")", "")),
            "a message's train is no: only 0 and 1, or false and true, are supported");
  EXPECT_EQ(reason(weighted(R"(, "train": false, "weight": 1)", "")),
            "a message says in two ways whether it is learnt from, and they differ");
  EXPECT_EQ(reason(weighted(R"(, "weight": 0)", R"(, "weight": 0)")), "every answer is marked not to be learnt from");
  EXPECT_EQ(
      reason(
          R"({"messages": [{"role": "user", "content": "u", "train": true}, {"role": "assistant", "content": "a"}]})"),
      "a message of the role user is marked to be learnt from, but only the assistant's are (loss_on = answers)");
}

// Two blocks for the last answer and one for each earlier one are ambiguous: the second could belong to the next
// answer.
TEST(Conversations, RefusesRowsWithAmbiguousBlocks) {
  const char* source =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
      "{% if loop.last %}{% generation %}<end>{% endgeneration %}{% endif %}{% else %}{{ m.content }}{% endif %}{% "
      "endfor "
      "%}";
  EXPECT_THAT(read_conversations(weighted(R"(, "weight": 0)", ""), format(source)).reason,
              ::testing::HasSubstr("writes an answer in another number of blocks once others follow"));
  EXPECT_EQ(read_conversations(weighted("", ""), format(source)).reason, "")
      << "without weights the blocks need no owner";
}

// Special tokens spelled in messages remain text in every rendering; those written by the template do not.
TEST(Conversations, SpecialTokensInContentsRemainText) {
  const Tokenizer tokenizer = with_special({"<|im_start|>", "<|im_end|>"});
  const TextEncoder encoder = text_encoder(std::make_shared<const Tokenizer>(tokenizer));
  const auto control = [&](ConversationFormat made, const std::string& content) {
    const ConversationRow row = read_conversations(
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ")" + content + R"("}]})",
        made);
    const EncodedConversation encoded = encode_conversation(row.conversations.at(0), encoder.encode_chat);
    EXPECT_EQ(tokenizer.decode(encoded.tokens), row.conversations[0].text);
    std::vector<int32_t> special;
    for (const int32_t id : encoded.tokens)
      if (id > 380) special.push_back(id);
    return special;
  };
  ConversationFormat chat = format(kChatMl);
  const std::vector<int32_t> own = {381, 382, 381, 382};
  EXPECT_EQ(control(chat, "a"), own);
  EXPECT_EQ(control(chat, "a<|im_end|>\\n<|im_start|>system"), own);
  EXPECT_EQ(control(chat, "a<|im_end|>"), own);
  chat.content_special_tokens = true;
  EXPECT_EQ(control(chat, "a<|im_end|>"), (std::vector<int32_t>{381, 382, 381, 382, 382}));
  ConversationFormat plain = format("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(
      answers(
          read_conversations(
              R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<|im_end|>\n"}]})",
              plain)
              .conversations.at(0)),
      Texts{"<|im_end|>\n"})
      << "the end-of-turn mark belongs to the message";
}

TEST(Conversations, ErrorsExplainUnusableRows) {
  const auto reason = [](const char* line, const char* source = kChatMl) {
    return read_conversations(line, format(source)).reason;
  };
  EXPECT_EQ(reason("[]"), "the row is not an object");
  EXPECT_EQ(reason(R"({"text": "a"})"), "no key \"messages\", nor a prompt and its answer");
  EXPECT_EQ(reason(R"({"messages": "a"})"), "\"messages\" is not a list of messages");
  EXPECT_EQ(reason(R"({"messages": [{"content": "a"}]})"), "a message has no role");
  EXPECT_EQ(reason(R"({"messages": [{"role": "user", "content": "a"}]})"), "no message is the assistant's");
  EXPECT_EQ(reason("{\"messages\": \"\xff\"}"), "invalid UTF-8");
  EXPECT_TRUE(reason("{\"messages\"").starts_with("the row: not valid JSON: "));
  EXPECT_EQ(
      reason(R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[1]"}}]}]})"),
      "tool_calls must be a list of {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}: the "
      "arguments of a call must be a JSON object, but are a list");
  EXPECT_EQ(reason(R"({"tools": [1], "messages": [{"role": "assistant", "content": "a"}]})"),
            "a tool must be an object, but is an integer");
  EXPECT_EQ(reason(R"({"tools": {}, "messages": [{"role": "assistant", "content": "a"}]})"),
            "tools must be a list, but are a dict");
  EXPECT_EQ(reason(R"({"messages": [{"role": "assistant", "content": "a"}]})", "{{ raise_exception('take turns') }}"),
            "the chat template refuses it: chat.jinja:1: take turns");
  EXPECT_EQ(reason(R"({"messages": [{"role": "assistant"}]})"),
            "the chat template refuses it: chat.jinja:1: + does not take a string and content, which is undefined,");
}

// Letters are tokens, and "
//
// " and <|im_end|> are single tokens.
void encode(std::string_view text, std::span<const TextSpan>, std::vector<int32_t>& out) {
  while (!text.empty()) {
    const std::string_view end = "<|im_end|>";
    const size_t size = text.starts_with(end) ? end.size() : text.starts_with("\n\n") ? 2 : 1;
    out.push_back(size == 1 ? text[0] : size == 2 ? 200 : 201);
    text.remove_prefix(size);
  }
}

TEST(Conversations, MarksAnswerTokensThatMergeWithThePrompt) {
  const Conversation conversation{"q\n\na<|im_end|>\n\nx", {{2, 14}}};  // from the second newline on
  const EncodedConversation encoded = encode_conversation(conversation, encode);
  EXPECT_EQ(encoded.tokens, (std::vector<int32_t>{'q', 200, 'a', 201, 200, 'x'}));
  EXPECT_EQ(encoded.loss, (std::vector<float>{0, 1, 1, 1, 0, 0}));
  const EncodedConversation whole = encode_conversation({"ab", {{0, 2}}}, encode);
  EXPECT_EQ(whole.loss, (std::vector<float>{1, 1}));
}

// The prompt ends with "è" (C3 A8) where the answer has "à" (C3 A0).
TEST(Conversations, AnswersBeginWithWholeCharacters) {
  const ConversationRow row = read_conversations(
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "à"}]})",
      format("{% for m in messages %}{{ 'A:é' if m.role == 'assistant' else 'U:' }}{{ m.content }}{% endfor %}"
             "{% if add_generation_prompt %}A:éè{% endif %}"));
  ASSERT_EQ(row.reason, "");
  EXPECT_EQ(answers(row.conversations[0]), Texts{"à"});
}

// A user's text must not be taken for the tag of an answer, nor a prompt that begins differently for the prompt.
TEST(Conversations, AnswersBeginAfterEarlierMessages) {
  const char* row = R"({"messages": [{"role": "user", "content": "1 < 2"}, {"role": "assistant", "content": "b"}]})";
  const ConversationRow tag =
      read_conversations(row, format("{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}"
                                     "{% if add_generation_prompt %}a:?{% endif %}"));
  ASSERT_EQ(tag.reason, "");
  EXPECT_EQ(answers(tag.conversations[0]), Texts{"b|"});
  const ConversationRow before = read_conversations(
      row, format("{% if add_generation_prompt %}?{% endif %}{% for m in messages %}{{ m.content }}|{% endfor %}"));
  EXPECT_EQ(before.reason, "the chat template does not continue what it writes for the messages before an answer");
}

}  // namespace
}  // namespace witan
