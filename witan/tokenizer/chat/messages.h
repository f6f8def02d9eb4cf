// Normalises messages and tools to the form that chat templates expect, so that training data and served requests are
// rendered alike. Clients and data sets may encode parts of them as JSON in strings: OpenAI's API does so for the
// arguments of calls, and tables for columns whose type differs from row to row.
#pragma once

#include <string>
#include <string_view>

#include "witan/tokenizer/chat/value.h"

namespace witan {

// Joins content that is a list of text parts to one string (content with other parts stays a list), sets it to an empty
// string if the message only has tool_calls, and decodes tool_calls and their arguments if they are JSON in strings.
// Throws DataError("tool_calls ..."), and for a message that is not an object with a role.
jinja::Value normal_message(const jinja::Value& message);

// The tools as a list of objects, decoded if they are JSON in strings; none if there are no tools. Throws DataError.
jinja::Value normal_tools(const jinja::Value& tools);

// Decodes messages that are a JSON string; returns anything else unchanged.
jinja::Value decoded_messages(const jinja::Value& messages);

}  // namespace witan
