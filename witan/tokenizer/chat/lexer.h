// Splits a template into text and the tokens of its tags, as Jinja does with trim_blocks and lstrip_blocks.
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

// Throws DataError("NAME:LINE: ...").
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace witan::jinja
