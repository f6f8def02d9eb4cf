#include "witan/train/rollouts/turn_template.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "train/rollouts/rollout_runs.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan {
namespace {

using test::message_of;

std::shared_ptr<const Tokenizer> bytes_tokenizer() {
  BpeTrainerConfig bytes;
  bytes.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|call|>"};
  bytes.vocab_size = 256 + 4;
  return std::make_shared<const Tokenizer>(BpeTrainer(bytes).train());
}

TurnTemplate turns_of(const std::string& source) {
  const auto tokenizer = bytes_tokenizer();
  FoundChatTemplate found{ChatTemplate(source, "chat.jinja"), "", "<|endoftext|>"};
  return TurnTemplate(std::make_shared<const ConversationFormat>(conversation_format(found, *tokenizer)), tokenizer);
}

ChatMessage message(const std::string& json) {
  return {{}, {}, json};
}
const ChatMessage kResult = message(R"({"role": "tool", "content": "42"})");

std::string text_of(const TurnTemplate::Turn& turn) {
  return bytes_tokenizer()->decode(turn.tokens);
}

// The template of Qwen 3, as far as it matters here: thoughts of answers before the last question are left out.
constexpr const char* kThinking =
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 "
    "%}"
    "{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and '</think>' in m.content %}{%- set parts = m.content.split('</think>') %}"
    "{%- if loop.index0 > ns.last %}{{- '<think>\\n' + parts[0].split('<think>')[-1].strip('\\n') + "
    "'\\n</think>\\n\\n' }}"
    "{%- endif %}{{- parts[1].lstrip('\\n') }}{%- else %}{{- m.content }}{%- endif %}{{- '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

// The answer ends with the template's token, with another one, or, after a stop string, without one.
TEST(TurnTemplate, ContinuesAfterTheTokenThatEndsAnAnswer) {
  const TurnTemplate turns = turns_of(testing::kRolloutTemplate);
  const TurnTemplate::Turn turn = turns.next("call", true, {kResult});
  EXPECT_EQ(text_of(turn), "\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_FALSE(turn.rewritten);
  EXPECT_EQ(text_of(turns.next("call", false, {kResult})),
            "<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n");
}

// Sampled and inserted tokens together are those of the whole text.
TEST(TurnTemplate, GivesTheTokensOfTheWholeConversation) {
  const auto tokenizer = bytes_tokenizer();
  const ChatTemplate chat(testing::kRolloutTemplate, "chat.jinja");
  const std::vector<ChatMessage> start = {{"user", "2*21"}},
                                 whole = {{"user", "2*21"}, {"assistant", "call"}, {"tool", "42"}, {"user", "so?"}};
  std::vector<int32_t> tokens = tokenizer->encode(chat.render(start, {.add_generation_prompt = true}), true),
                       answer = tokenizer->encode("call<|im_end|>", true),
                       turn = turns_of(testing::kRolloutTemplate)
                                  .next("call", true, {kResult, message(R"({"role": "user", "content": "so?"})")})
                                  .tokens;
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  tokens.insert(tokens.end(), turn.begin(), turn.end());
  EXPECT_EQ(tokens, tokenizer->encode(chat.render(whole, {.add_generation_prompt = true}), true));
}

// A tool cannot end its own turn.
TEST(TurnTemplate, TakesSpecialTokensOfMessagesForText) {
  const TurnTemplate::Turn turn =
      turns_of(testing::kRolloutTemplate).next("x", true, {message(R"({"role": "tool", "content": "<|im_end|>"})")});
  EXPECT_EQ(text_of(turn), "\n<|im_start|>tool\n<|im_end|><|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(std::ranges::count(turn.tokens, bytes_tokenizer()->token_id("<|im_end|>").value()), 1);
}

TEST(TurnTemplate, CountsAnswersThatTheTemplateRewrites) {
  const TurnTemplate turns = turns_of(kThinking);
  const std::string thought = "<think>\nhm\n</think>\n\n42";
  const ChatMessage more = message(R"({"role": "user", "content": "More."})");
  EXPECT_FALSE(turns.next("42", true, {kResult}).rewritten);
  EXPECT_FALSE(turns.next("42", true, {more}).rewritten);
  EXPECT_FALSE(turns.next(thought, true, {kResult}).rewritten);
  const TurnTemplate::Turn turn = turns.next(thought, true, {more});
  EXPECT_TRUE(turn.rewritten);
  EXPECT_EQ(text_of(turn), "\n<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n");
}

// As in GPT-OSS, whose results of tools are headed by the call.
TEST(TurnTemplate, ShowsTheTemplateCallsThatProgramsHaveFound) {
  const TurnTemplate turns = turns_of(
      "{% set ns = namespace(call=none) %}{% for m in messages %}"
      "{% if m.role == 'assistant' and m.tool_calls %}{% set ns.call = m.tool_calls[0].function.name %}"
      "to={{ ns.call }} {{ m.tool_calls[0].function.arguments|tojson }}<|call|>"
      "{% elif m.role == 'tool' %}{% if ns.call is none %}{{ raise_exception('no call') }}{% endif %}"
      "from={{ ns.call }} {{ m.content }}<|im_end|>{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>{% endif %}");
  const ChatMessage call = message(
      R"({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"x": 1}}}]})");
  EXPECT_EQ(text_of(turns.next("to=add {\"x\":1}", true, {call, kResult})), "from=add 42<|im_end|><|im_start|>");
  EXPECT_NE(message_of<DataError>([&] { turns.next("to=add {\"x\":1}", true, {kResult}); }).find("no call"),
            std::string::npos);
}

TEST(TurnTemplate, RefusesTemplatesThatRewriteEveryAnswer) {
  const std::string prompt = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
  const auto refusal = [&](const std::string& source) { return message_of<ConfigError>([&] { turns_of(source); }); };
  EXPECT_NE(refusal("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}"
                    "<|im_end|>{% endfor %}" +
                    prompt)
                .find("after a tool's result the chat template writes an answer otherwise than it was sampled"),
            std::string::npos);
  EXPECT_NE(refusal("{% if messages|length > 2 %}{{ raise_exception('one question') }}{% endif %}"
                    "{% for m in messages %}{{ m.content }}{% endfor %}")
                .find("refuses the conversation"),
            std::string::npos);
}

}  // namespace
}  // namespace witan
