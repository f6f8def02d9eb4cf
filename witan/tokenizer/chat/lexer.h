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
  std::string text = {};  // of a string: its value, without quotes and escapes
};

// The white-space options of Jinja's Environment; the defaults are those of Hugging Face's chat templates.
struct Whitespace {
  bool trim_blocks = true;             // removes the line end after a block
  bool lstrip_blocks = true;           // removes white space before a block at the start of its line
  bool keep_trailing_newline = false;  // keeps a line end at the end of the template
};

// Throws DataError("NAME:LINE: ...").
std::vector<Token> tokenize(std::string_view source, const std::string& name, const Whitespace& whitespace = {});

// A position in the tokens of a template, from which the parsers read.
class TokenCursor {
 public:
  // `name` is the template's, for messages, and must outlive this. The last token must be of kind end.
  TokenCursor(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  // Counts an open block or bracket while in scope. Throws DataError if too many are open.
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
  std::string shown() const;  // the text of now(), for messages

  bool is_symbol(std::string_view text) const { return is(Token::Kind::symbol, text); }
  bool is_name(std::string_view text) const { return is(Token::Kind::name, text); }

  // Consume the token if it is this one. Return whether it was.
  bool skip_symbol(std::string_view text) { return skip(Token::Kind::symbol, text); }
  bool skip_name(std::string_view text) { return skip(Token::Kind::name, text); }

  // Consume the token. Throw DataError if it is a different one.
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
