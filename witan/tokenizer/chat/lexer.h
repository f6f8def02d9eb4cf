// Splits a template into text and the tokens of its tags, and walks over these for the parsers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
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

class TokenCursor {
 public:
  // `name` is the template's, for messages; it outlives the cursor. The last token is of kind end.
  TokenCursor(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  // A block or a bracket is open as long as it lives. Throws DataError if there are too many.
  class Nesting {
   public:
    explicit Nesting(TokenCursor& cursor);
    ~Nesting() { --cursor_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    TokenCursor& cursor_;
  };

  // Throws DataError("NAME:LINE: WHY").
  [[noreturn]] void fail(const std::string& why) const;

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const;  // the one that follows now()
  Token take();
  std::string shown() const;  // now(), for messages

  bool is_symbol(std::string_view text) const { return is(Token::Kind::symbol, text); }
  bool is_name(std::string_view text) const { return is(Token::Kind::name, text); }

  // Take the token if it is this one, and say whether it was.
  bool skip_symbol(std::string_view text) { return skip(Token::Kind::symbol, text); }
  bool skip_name(std::string_view text) { return skip(Token::Kind::name, text); }

  // Take the token. Throw DataError if it is another one.
  void expect_symbol(std::string_view text);
  void expect_end(Token::Kind kind);  // block_end or output_end
  std::string expect_name(const char* what);

 private:
  bool is(Token::Kind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool skip(Token::Kind kind, std::string_view text);

  const std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace witan::jinja
