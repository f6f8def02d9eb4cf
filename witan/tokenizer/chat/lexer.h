// Splits a template into text and the tokens of its tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace witan::jinja {

struct Token {
  enum class Kind { text, output_begin, output_end, block_begin, block_end, name, string, integer, real, symbol, end };
  Kind kind = Kind::end;
  int line = 0;
  std::string text = {};  // of a string: what it stands for
};

// What Jinja's Environment is told of white space; by default what Hugging Face's chat templates are written for.
struct Whitespace {
  bool trim_blocks = true;             // a block takes the line end behind it
  bool lstrip_blocks = true;           // one that is first on its line takes the white space before it
  bool keep_trailing_newline = false;  // of the template
};

// Throws DataError("NAME:LINE: ...").
std::vector<Token> tokenize(std::string_view source, const std::string& name, const Whitespace& whitespace = {});

}  // namespace witan::jinja
