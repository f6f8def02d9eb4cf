// Parses a template: its statements (parser.cpp) and, by recursive descent from the operators that bind least, the
// expressions in them (expression_parser.cpp). What lies beyond the supported part of Jinja is refused here, with the
// template's name and line: unknown statements, filters and tests, macros within macros or loops, unbounded nesting.
#pragma once

#include <string>
#include <string_view>

#include "witan/tokenizer/chat/lexer.h"
#include "witan/tokenizer/chat/syntax.h"

namespace witan::jinja {

// All functions throw DataError("NAME:LINE: ...").

struct Parsed {
  Block block;
  bool has_generation = false;  // contains {% generation %} blocks
};
Parsed parse(std::string_view source, const std::string& name, const Whitespace& whitespace = {});

// Each of these consumes its tokens from the cursor.
ExpressionPtr parse_expression(TokenCursor& cursor);
// One expression, or several separated by commas.
ExpressionPtr parse_tuple(TokenCursor& cursor);
// As parse_tuple(), but the expressions have no `if`: one that follows belongs to the loop or starts the next branch.
ExpressionPtr parse_tuple_without_condition(TokenCursor& cursor);
// The name of a filter and its arguments, applied to `value`; nullptr: applied to the statement's body.
ExpressionPtr parse_filter(TokenCursor& cursor, ExpressionPtr value);

}  // namespace witan::jinja
