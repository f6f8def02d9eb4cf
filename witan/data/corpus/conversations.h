// Conversations as training data: rows of JSON Lines in the messages format, rendered by a chat template, with the
// places of the answers, which alone are learnt from. docs/finetune.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/chat/chat_template.h"

namespace witan {

class Tokenizer;

struct ConversationFormat {
  ChatTemplate chat;
  std::string bos_token, eos_token;
  std::string messages_key = "messages";
  bool answers_only = true;                      // else every token is learnt from
  std::vector<std::string> special_tokens = {};  // of the tokenizer: what may end an answer
  bool content_special_tokens = false;           // those that messages spell are recognised, too
  bool preferences = false;                      // rows are pairs of answers (corpus/preferences.h)
  std::string end_of_text = {};                  // the tokenizer's; empty: it has none

  std::string hash() const;  // changes whenever the text or the answers would change
};

ConversationFormat conversation_format(FoundChatTemplate found, const Tokenizer& tokenizer);

// The token with which the template ends an answer: the first special one after it, <|im_end|> of ChatML. Nothing
// where it writes none, or does not take a question and its answer.
std::optional<int32_t> end_of_turn(const FoundChatTemplate& found, const Tokenizer& tokenizer);

// The keys of a prompt and of its answer in a row without messages.
inline constexpr std::array<std::string_view, 4> kPromptKeys = {"prompt", "question", "problem", "instruction"};
inline constexpr std::array<std::string_view, 5> kAnswerKeys = {"answer", "completion", "response", "solution",
                                                                "output"};

// The date of strftime_now() in training data, 26 July 2024: rendering must not depend on the day of the run.
inline constexpr int64_t kTrainingDay = 1'721'952'000;

// A conversation's place in a pair of answers to one prompt, which are adjacent, the chosen one first. Its value is the
// mark that the conversation's first token, which is no target, has in shards (data/datasets/conversation_dataset.h).
enum class PairPlace : uint8_t { none = 0, chosen = 2, rejected = 3 };

struct Conversation {
  std::string text;
  std::vector<TextSpan> answers;       // what is learnt from, in order
  std::vector<TextSpan> literal = {};  // what messages and tools wrote: special tokens that it spells are text
  std::vector<float> weights = {};     // of each answer in the loss; empty: 1 each
  PairPlace pair = PairPlace::none;
};

struct ConversationRow {
  std::vector<Conversation> conversations;
  std::string reason;  // why the row is unusable; empty: it is usable
};

// A row of preferences, if the format says so (corpus/preferences.h), else
// a row {"messages": [{"role", "content", ...}, ...], "tools": [...]}, or {"conversations": [{"from", "value"}]} where
// it has no messages (human and user are the user, gpt, chatgpt and assistant the assistant), or a row with one of
// kPromptKeys and one of kAnswerKeys, whose values are texts, numbers or lists of messages. Messages and tools are
// read as those of requests are (chat/chat_template.h). An assistant's message with a "weight" of 0, or with false as
// its "train", "trainable", "training" or "loss", is not learnt from; with another weight each of its tokens has that.
//
// Answers are what the template's {% generation %} blocks write, if it has some. Else they are found by rendering: an
// answer is what the conversation up to it has beyond the conversation before it with a generation prompt, or beyond
// what the two have in common before a tag, where the template does not continue its prompt. White space after the
// special token that ends an answer is not part of it. Where a template writes a turn differently once others follow
// (Qwen 3 leaves earlier thoughts out), every answer becomes a conversation of its own, that ends with it, as in
// generation.
ConversationRow read_conversations(std::string_view line, const ConversationFormat& format);

// The tokens of a conversation, special ones recognised but in what is literal, and of each its weight in the loss:
// that of the answer within which it begins, or whose first bytes it holds, else 0. In a pair the first token has
// the value of the conversation's place instead.
struct EncodedConversation {
  std::vector<int32_t> tokens;
  std::vector<float> loss;
};
EncodedConversation encode_conversation(
    const Conversation& conversation,
    const std::function<void(std::string_view text, std::span<const TextSpan> literal, std::vector<int32_t>& out)>&
        encode_chat);

}  // namespace witan
