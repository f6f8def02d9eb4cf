#include "witan/tokenizer/chat/parser.h"

#include <algorithm>
#include <initializer_list>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/lexer.h"

namespace witan::jinja {
namespace {

constexpr size_t kMostSource = 4 << 20;

class StatementParser {
 public:
  StatementParser(std::vector<Token> tokens, const std::string& name) : cursor_(std::move(tokens), name) {}

  Parsed run() {
    Parsed parsed;
    parsed.block = block({});
    parsed.has_generation = has_generation_;
    return parsed;
  }

 private:
  using Words = std::initializer_list<std::string_view>;

  // Parses up to a block that begins with one of these words, which is then the next token; without words, to the end.
  Block block(Words until) {
    const TokenCursor::Nesting nesting(cursor_);
    Block statements;
    for (;;) {
      if (cursor_.now().kind == Token::Kind::end) {
        if (until.size() > 0) cursor_.fail(cat("the template ends where {% ", *(until.end() - 1), " %} should be"));
        return statements;
      }
      if (cursor_.now().kind == Token::Kind::text) {
        statements.push_back({.kind = Statement::Kind::text, .line = cursor_.now().line, .text = cursor_.now().text});
        cursor_.take();
      } else if (cursor_.now().kind == Token::Kind::output_begin) {
        cursor_.take();
        Statement output{.kind = Statement::Kind::output, .line = cursor_.now().line};
        output.expression = parse_tuple(cursor_);
        cursor_.expect_end(Token::Kind::output_end);
        statements.push_back(std::move(output));
      } else {
        const std::string_view word = cursor_.after().text;
        if (cursor_.after().kind == Token::Kind::name && std::find(until.begin(), until.end(), word) != until.end())
          return statements;
        cursor_.take();
        statement(statements);
      }
    }
  }

  void statement(Block& statements) {
    const int line = cursor_.now().line;
    const std::string word = cursor_.expect_name("a statement");
    Statement made{.kind = Statement::Kind::text, .line = line};
    if (word == "if")
      branch(made);
    else if (word == "for")
      loop(made);
    else if (word == "set")
      set(made);
    else if (word == "macro")
      macro(made);
    else if (word == "filter")
      filter_block(made);
    else if (word == "generation")
      generation(made);
    else if (word == "break" || word == "continue")
      leave(made, word);
    else
      refuse(word);
    statements.push_back(std::move(made));
  }

  [[noreturn]] void refuse(const std::string& word) const {
    if (word.starts_with("end") || word == "else" || word == "elif")
      cursor_.fail(cat("{% ", word, " %} has no matching opening block"));
    cursor_.fail(cat("the statement {% ", clipped(word),
                     " %} is not supported: for, if, set, macro, filter, generation, raw, "
                     "break and continue are"));
  }

  void branch(Statement& made) {
    made.kind = Statement::Kind::branch;
    made.conditions.push_back(parse_tuple_without_condition(cursor_));
    for (;;) {
      cursor_.expect_end(Token::Kind::block_end);
      made.bodies.push_back(block({"elif", "else", "endif"}));
      cursor_.take();  // {%
      const Token word = cursor_.take();
      if (word.text == "elif") {
        made.conditions.push_back(parse_tuple_without_condition(cursor_));
        continue;
      }
      if (word.text == "else") {
        cursor_.expect_end(Token::Kind::block_end);
        made.bodies.push_back(block({"endif"}));
        cursor_.take();
        cursor_.take();
      }
      return cursor_.expect_end(Token::Kind::block_end);
    }
  }

  void loop(Statement& made) {
    made.kind = Statement::Kind::loop;
    made.target = targets();
    if (!cursor_.skip_name("in")) cursor_.fail(cat("expected in and found ", cursor_.shown()));
    made.expression = parse_tuple_without_condition(cursor_);
    if (cursor_.skip_name("if")) made.conditions.push_back(parse_expression(cursor_));
    if (cursor_.is_name("recursive")) cursor_.fail("recursive loops are not supported");
    cursor_.expect_end(Token::Kind::block_end);
    ++loops_;
    made.bodies.push_back(block({"else", "endfor"}));
    --loops_;
    cursor_.take();
    if (cursor_.take().text == "else") {
      cursor_.expect_end(Token::Kind::block_end);
      made.bodies.push_back(block({"endfor"}));
      cursor_.take();
      cursor_.take();
    }
    cursor_.expect_end(Token::Kind::block_end);
  }

  // One target, or several separated by commas.
  Target targets() {
    Target first = target();
    if (!cursor_.is_symbol(",")) return first;
    Target all;
    all.parts.push_back(std::move(first));
    while (cursor_.skip_symbol(",") && !cursor_.is_symbol(")") && !cursor_.is_symbol("="))
      all.parts.push_back(target());
    return all;
  }

  Target target() {
    const TokenCursor::Nesting nesting(cursor_);
    if (!cursor_.skip_symbol("(")) return {cursor_.expect_name("a name")};
    Target inner = targets();
    cursor_.expect_symbol(")");
    return inner;
  }

  void leave(Statement& made, const std::string& word) {
    if (loops_ == 0) cursor_.fail(cat("{% ", word, " %} is not in a loop"));
    made.kind = word == "break" ? Statement::Kind::stop : Statement::Kind::next;
    cursor_.expect_end(Token::Kind::block_end);
  }

  void set(Statement& made) {
    made.kind = Statement::Kind::set;
    made.target = targets();
    const bool single = made.target.parts.empty();
    if (single && cursor_.skip_symbol(".")) made.attribute = cursor_.expect_name("an attribute");
    if (cursor_.skip_symbol("=")) {
      made.expression = parse_tuple(cursor_);
      return cursor_.expect_end(Token::Kind::block_end);
    }
    if (!single || !made.attribute.empty()) cursor_.fail(cat("expected = and found ", cursor_.shown()));
    made.kind = Statement::Kind::set_block;
    while (cursor_.skip_symbol("|")) made.filters.push_back(parse_filter(cursor_, {}));
    cursor_.expect_end(Token::Kind::block_end);
    body(made, "endset");
  }

  void body(Statement& made, std::string_view end) {
    made.bodies.push_back(block({end}));
    cursor_.take();
    cursor_.take();
    cursor_.expect_end(Token::Kind::block_end);
  }

  void macro(Statement& made) {
    made.kind = Statement::Kind::macro;
    if (loops_ > 0 || in_macro_) cursor_.fail("a macro within a loop or another macro is not supported");
    made.target.name = cursor_.expect_name("a name");
    cursor_.expect_symbol("(");
    while (!cursor_.skip_symbol(")")) {
      if (!made.parameters.empty()) cursor_.expect_symbol(",");
      std::string name = cursor_.expect_name("a parameter");
      made.parameters.emplace_back(std::move(name), cursor_.skip_symbol("=") ? parse_expression(cursor_) : nullptr);
    }
    cursor_.expect_end(Token::Kind::block_end);
    in_macro_ = true;
    made.bodies.push_back(block({"endmacro"}));
    in_macro_ = false;
    cursor_.take();
    cursor_.take();
    if (cursor_.now().kind == Token::Kind::name) cursor_.take();
    cursor_.expect_end(Token::Kind::block_end);
  }

  void filter_block(Statement& made) {
    made.kind = Statement::Kind::filter;
    do made.filters.push_back(parse_filter(cursor_, {}));
    while (cursor_.skip_symbol("|"));
    cursor_.expect_end(Token::Kind::block_end);
    body(made, "endfilter");
  }

  void generation(Statement& made) {
    made.kind = Statement::Kind::generation;
    if (in_generation_) cursor_.fail("{% generation %} within another one is not supported");
    has_generation_ = in_generation_ = true;
    cursor_.expect_end(Token::Kind::block_end);
    body(made, "endgeneration");
    in_generation_ = false;
  }

  TokenCursor cursor_;
  int loops_ = 0;  // loops around the current statement
  bool in_macro_ = false, in_generation_ = false, has_generation_ = false;
};

}  // namespace

Parsed parse(std::string_view source, const std::string& name, const Whitespace& whitespace) {
  require<DataError>(source.size() <= kMostSource, name, ": a template of more than ", format_bytes(kMostSource),
                     " is not supported");
  return StatementParser(tokenize(source, name, whitespace), name).run();
}

}  // namespace witan::jinja
