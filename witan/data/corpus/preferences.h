// Pairs of answers to one prompt, of which one is preferred: rows {"prompt", "chosen", "rejected"} in the formats of
// TRL's preference datasets.
#pragma once

#include <vector>

#include "witan/data/corpus/conversations.h"
#include "witan/tokenizer/chat/value.h"

namespace witan {

// The chosen and the rejected conversation of a row.
//
// Texts are taken as they are: prompt, answer, and the template's eos_token or else the tokenizer's end of text. A row
// without a prompt has it at the beginning of both answers, up to the last white space before they differ.
//
// Lists of messages are rendered by the chat template. If the prompt is a list, too, the answers continue it (an answer
// may then also be a text, of one message of the assistant); otherwise both begin with it, and what they have in common
// is the prompt. The assistant's messages after the prompt are learnt from. "tools" are as in conversations.
//
// Throws Refused (corpus/conversation_row.h) and DataError for a row that is not usable.
std::vector<Conversation> pair_of(const jinja::Value& row, const ConversationFormat& format);

}  // namespace witan
