// Parses the expressions of a template, by descent from the operators that bind least. Filters and tests that are not
// known are refused here, by name and line.
#pragma once

#include "witan/tokenizer/chat/syntax.h"
#include "witan/tokenizer/chat/token_cursor.h"

namespace witan::jinja {

// Each takes its tokens from the cursor and throws DataError("NAME:LINE: ...").

ExpressionPtr parse_expression(TokenCursor& cursor);
// One expression, or several with commas between them.
ExpressionPtr parse_tuple(TokenCursor& cursor);
// The same of expressions without `if`, which is the loop's or the next branch's own.
ExpressionPtr parse_tuple_without_condition(TokenCursor& cursor);
// The name of a filter and its arguments, which is applied to the value; null: to what the statement holds.
ExpressionPtr parse_filter(TokenCursor& cursor, ExpressionPtr value);

}  // namespace witan::jinja
