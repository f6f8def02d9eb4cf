// Values as Python's repr() writes them, which is how templates print lists (ast.literal_eval).
#pragma once

#include <string>
#include <string_view>

#include "witan/tokenizer/chat/value.h"

namespace witan {

// Strings, integers, floats, True, False, None, lists and tuples of these. Throws DataError naming `what` and the byte
// for anything else.
jinja::Value parse_python_literal(std::string_view text, std::string_view what);

}  // namespace witan
