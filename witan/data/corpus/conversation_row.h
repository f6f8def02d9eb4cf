// Parts of read_conversations() that other kinds of rows use too.
#pragma once

#include <string>

#include "witan/data/corpus/conversations.h"
#include "witan/tokenizer/chat/value.h"

namespace witan {

// Thrown for a row that is not usable.
struct Refused {
  std::string reason;
};

// Throws Refused.
void insist(bool condition, const std::string& reason);

// The member of an object; null if `object` is none, has no such member, or the member is null.
const jinja::Value* member(const jinja::Value& object, std::string_view key);

// The conversations of a row that has messages. Throws Refused and DataError.
std::vector<Conversation> conversations_of(const jinja::Value& row, const ConversationFormat& format);

}  // namespace witan
