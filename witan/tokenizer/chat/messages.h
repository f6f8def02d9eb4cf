// Messages and tools as chat templates expect them, whichever door they come through: rows that are trained on and
// requests that are served are rendered alike. Clients and data sets write parts of them as JSON in strings, as
// OpenAI's API has the arguments of calls and as tables keep what differs from row to row.
#pragma once

#include <string>
#include <string_view>

#include "witan/tokenizer/chat/value.h"

namespace witan {

// The message with its content in parts of text joined to one string, an empty one where there are but tool_calls;
// these, and their arguments, as what they are where they are JSON in strings. Parts of other kinds stay a list.
// Throws DataError("tool_calls ..."), for a message that is no object with a role too.
jinja::Value normal_message(const jinja::Value& message);

// A list of objects; none where there are no tools. A string is decoded, and one in the list. Throws DataError.
jinja::Value normal_tools(const jinja::Value& tools);

// The list of messages that a JSON string has; anything else as it is.
jinja::Value decoded_messages(const jinja::Value& messages);

}  // namespace witan
