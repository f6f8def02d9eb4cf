// Parses a template: its statements, and by expression_parser.h the expressions in them. What lies beyond the supported
// part of Jinja is refused here, by name and line: statements, filters and tests that are not known, macros within
// macros or loops, and nesting without end.
#pragma once

#include <string>
#include <string_view>

#include "witan/tokenizer/chat/lexer.h"
#include "witan/tokenizer/chat/syntax.h"

namespace witan::jinja {

struct Parsed {
  Block block;
  bool has_generation = false;  // blocks of {% generation %}
};

// Throws DataError("NAME:LINE: ...").
Parsed parse(std::string_view source, const std::string& name, const Whitespace& whitespace = {});

}  // namespace witan::jinja
