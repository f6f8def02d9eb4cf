#include "witan/tokenizer/chat/parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/filters.h"
#include "witan/tokenizer/chat/lexer.h"
#include "witan/tokenizer/chat/value_tests.h"

namespace witan::jinja {
namespace {

using Kind = Expression::Kind;
using Words = std::initializer_list<std::string_view>;

constexpr int kMostNesting = 64;  // of brackets and blocks
constexpr int kMostHeight = 400;  // of an expression
constexpr size_t kMostSource = 4 << 20;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  Parsed run() {
    Parsed parsed;
    parsed.block = block({});
    parsed.has_generation = has_generation_;
    return parsed;
  }

 private:
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMostNesting) parser_.fail(cat("the template is nested deeper than ", kMostNesting));
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail(const std::string& why) const { throw DataError(cat(name_, ":", now().line, ": ", why)); }

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() {
    Token token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is(Token::Kind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool is_symbol(std::string_view text) const { return is(Token::Kind::symbol, text); }
  bool is_name(std::string_view text) const { return is(Token::Kind::name, text); }
  bool skip_symbol(std::string_view text) {
    const bool found = is_symbol(text);
    if (found) take();
    return found;
  }
  bool skip_name(std::string_view text) {
    const bool found = is_name(text);
    if (found) take();
    return found;
  }
  std::string shown() const {
    switch (now().kind) {
      case Token::Kind::output_end:
        return "}}";
      case Token::Kind::block_end:
        return "%}";
      case Token::Kind::end:
        return "the end of the template";
      default:
        return clipped(now().text);
    }
  }
  void expect_symbol(std::string_view text) {
    if (!skip_symbol(text)) fail(cat("expected ", text, " and found ", shown()));
  }
  void expect_end(Token::Kind kind) {
    if (now().kind != kind)
      fail(cat("expected ", kind == Token::Kind::block_end ? "%}" : "}}", " and found ", shown()));
    take();
  }
  std::string expect_name(const char* what) {
    if (now().kind != Token::Kind::name) fail(cat("expected ", what, " and found ", shown()));
    return take().text;
  }

  // ---- statements

  // Up to a block that begins with one of the words, which is next then; without words up to the end.
  Block block(Words until) {
    const Nesting nesting(*this);
    Block statements;
    for (;;) {
      if (now().kind == Token::Kind::end) {
        if (until.size() > 0) fail(cat("the template ends where {% ", *(until.end() - 1), " %} should be"));
        return statements;
      }
      if (now().kind == Token::Kind::text) {
        statements.push_back({.kind = Statement::Kind::text, .line = now().line, .text = now().text});
        take();
      } else if (now().kind == Token::Kind::output_begin) {
        take();
        Statement output{.kind = Statement::Kind::output, .line = now().line};
        output.expression = tuple();
        expect_end(Token::Kind::output_end);
        statements.push_back(std::move(output));
      } else {
        const std::string_view word = after().text;
        if (after().kind == Token::Kind::name && std::find(until.begin(), until.end(), word) != until.end())
          return statements;
        take();
        statement(statements);
      }
    }
  }

  void statement(Block& statements) {
    const int line = now().line;
    const std::string word = expect_name("a statement");
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
    if (word.starts_with("end") || word == "else" || word == "elif") fail(cat("{% ", word, " %} has no beginning"));
    fail(cat("the statement {% ", clipped(word),
             " %} is not supported: for, if, set, macro, filter, generation, break "
             "and continue are"));
  }

  void branch(Statement& made) {
    made.kind = Statement::Kind::branch;
    made.conditions.push_back(without_condition());
    for (;;) {
      expect_end(Token::Kind::block_end);
      made.bodies.push_back(block({"elif", "else", "endif"}));
      take();  // {%
      const std::string word = take().text;
      if (word == "elif") {
        made.conditions.push_back(without_condition());
        continue;
      }
      if (word == "else") {
        expect_end(Token::Kind::block_end);
        made.bodies.push_back(block({"endif"}));
        take();
        take();
      }
      return expect_end(Token::Kind::block_end);
    }
  }

  void loop(Statement& made) {
    made.kind = Statement::Kind::loop;
    do made.names.push_back(expect_name("a name"));
    while (skip_symbol(","));
    if (!skip_name("in")) fail(cat("expected in and found ", shown()));
    made.expression = without_condition();
    if (skip_name("if")) made.conditions.push_back(expression());
    if (is_name("recursive")) fail("recursive loops are not supported");
    expect_end(Token::Kind::block_end);
    ++loops_;
    made.bodies.push_back(block({"else", "endfor"}));
    --loops_;
    take();
    if (take().text == "else") {
      expect_end(Token::Kind::block_end);
      made.bodies.push_back(block({"endfor"}));
      take();
      take();
    }
    expect_end(Token::Kind::block_end);
  }

  void leave(Statement& made, const std::string& word) {
    if (loops_ == 0) fail(cat("{% ", word, " %} is not in a loop"));
    made.kind = word == "break" ? Statement::Kind::stop : Statement::Kind::next;
    expect_end(Token::Kind::block_end);
  }

  void set(Statement& made) {
    made.kind = Statement::Kind::set;
    made.names.push_back(expect_name("a name"));
    if (skip_symbol(".")) made.attribute = expect_name("an attribute");
    while (skip_symbol(",")) made.names.push_back(expect_name("a name"));
    if (skip_symbol("=")) {
      made.expression = tuple();
      return expect_end(Token::Kind::block_end);
    }
    if (made.names.size() > 1 || !made.attribute.empty()) fail(cat("expected = and found ", shown()));
    made.kind = Statement::Kind::set_block;
    while (skip_symbol("|")) made.filters.push_back(filter({}));
    expect_end(Token::Kind::block_end);
    body(made, "endset");
  }

  void body(Statement& made, std::string_view end) {
    made.bodies.push_back(block({end}));
    take();
    take();
    expect_end(Token::Kind::block_end);
  }

  void macro(Statement& made) {
    made.kind = Statement::Kind::macro;
    if (loops_ > 0 || in_macro_) fail("a macro within a loop or another macro is not supported");
    made.names.push_back(expect_name("a name"));
    expect_symbol("(");
    while (!skip_symbol(")")) {
      if (!made.parameters.empty()) expect_symbol(",");
      std::string name = expect_name("a parameter");
      made.parameters.emplace_back(std::move(name), skip_symbol("=") ? expression() : nullptr);
    }
    expect_end(Token::Kind::block_end);
    in_macro_ = true;
    made.bodies.push_back(block({"endmacro"}));
    in_macro_ = false;
    take();
    take();
    if (now().kind == Token::Kind::name) take();
    expect_end(Token::Kind::block_end);
  }

  void filter_block(Statement& made) {
    made.kind = Statement::Kind::filter;
    do made.filters.push_back(filter({}));
    while (skip_symbol("|"));
    expect_end(Token::Kind::block_end);
    body(made, "endfilter");
  }

  void generation(Statement& made) {
    made.kind = Statement::Kind::generation;
    if (in_generation_) fail("{% generation %} stands within another one");
    has_generation_ = in_generation_ = true;
    expect_end(Token::Kind::block_end);
    body(made, "endgeneration");
    in_generation_ = false;
  }

  // ---- expressions

  ExpressionPtr make(Kind kind, std::string text = {}) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = now().line;
    made->text = std::move(text);
    return made;
  }

  void adopt(Expression& parent, ExpressionPtr child) const {
    if (child) parent.height = std::max(parent.height, child->height + 1);
    if (parent.height > kMostHeight) fail(cat("an expression has more than ", kMostHeight, " operations in a row"));
    parent.children.push_back(std::move(child));
  }

  template <class... Children>
  ExpressionPtr make_of(Kind kind, std::string text, Children... children) const {
    ExpressionPtr made = make(kind, std::move(text));
    (adopt(*made, std::move(children)), ...);
    return made;
  }

  bool at_end() const {
    return now().kind == Token::Kind::output_end || now().kind == Token::Kind::block_end || is_symbol(")");
  }

  // One expression, or several with commas between them.
  ExpressionPtr tuple() {
    ExpressionPtr first = expression();
    if (!is_symbol(",")) return first;
    ExpressionPtr made = make(Kind::list, "tuple");
    adopt(*made, std::move(first));
    while (skip_symbol(",") && !at_end()) adopt(*made, expression());
    return made;
  }

  ExpressionPtr without_condition() {
    ExpressionPtr first = any();
    if (!is_symbol(",")) return first;
    ExpressionPtr made = make(Kind::list, "tuple");
    adopt(*made, std::move(first));
    while (skip_symbol(",") && !at_end()) adopt(*made, any());
    return made;
  }

  ExpressionPtr expression() {
    const Nesting nesting(*this);
    ExpressionPtr value = any();
    while (skip_name("if")) {
      ExpressionPtr condition = any();
      ExpressionPtr other = skip_name("else") ? expression() : nullptr;
      value = make_of(Kind::conditional, {}, std::move(value), std::move(condition), std::move(other));
    }
    return value;
  }

  // Operands with one operator between them.
  template <class Skip, class Operand>
  ExpressionPtr chain(Kind kind, const Skip& skip, const Operand& operand) {
    ExpressionPtr first = operand();
    if (!skip()) return first;
    ExpressionPtr made = make(kind);
    adopt(*made, std::move(first));
    do adopt(*made, operand());
    while (skip());
    return made;
  }

  ExpressionPtr any() {
    return chain(
        Kind::any, [&] { return skip_name("or"); }, [&] { return all(); });
  }
  ExpressionPtr all() {
    return chain(
        Kind::all, [&] { return skip_name("and"); }, [&] { return negation(); });
  }
  ExpressionPtr negation() {
    const Nesting nesting(*this);
    if (skip_name("not")) return make_of(Kind::negation, {}, negation());
    return comparison();
  }

  std::string comparison_operator() {
    for (const std::string_view one : {"==", "!=", "<=", ">=", "<", ">"})
      if (skip_symbol(one)) return std::string(one);
    if (skip_name("in")) return "in";
    if (is_name("not") && after().kind == Token::Kind::name && after().text == "in") {
      take();
      take();
      return "not in";
    }
    return {};
  }

  ExpressionPtr comparison() {
    ExpressionPtr first = sum();
    std::string compares = comparison_operator();
    if (compares.empty()) return first;
    ExpressionPtr made = make(Kind::compare);
    adopt(*made, std::move(first));
    for (; !compares.empty(); compares = comparison_operator()) {
      made->operators.push_back(compares);
      adopt(*made, sum());
    }
    return made;
  }

  template <class Operand>
  ExpressionPtr arithmetic(Words symbols, const Operand& operand) {
    ExpressionPtr value = operand();
    for (;;) {
      const auto found = std::find_if(symbols.begin(), symbols.end(), [&](auto symbol) { return is_symbol(symbol); });
      if (found == symbols.end()) return value;
      take();
      ExpressionPtr right = operand();
      value = make_of(Kind::arithmetic, std::string(*found), std::move(value), std::move(right));
    }
  }

  ExpressionPtr sum() {
    return arithmetic({"+", "-"}, [&] { return concat(); });
  }
  ExpressionPtr concat() {
    return chain(
        Kind::concat, [&] { return skip_symbol("~"); }, [&] { return product(); });
  }
  ExpressionPtr product() {
    return arithmetic({"*", "/", "//", "%"}, [&] { return power(); });
  }
  ExpressionPtr power() {
    return arithmetic({"**"}, [&] { return unary(true); });
  }

  ExpressionPtr unary(bool with_filter) {
    const Nesting nesting(*this);
    ExpressionPtr value;
    if (skip_symbol("-"))
      value = make_of(Kind::minus, {}, unary(false));
    else if (skip_symbol("+"))
      value = make_of(Kind::plus, {}, unary(false));
    else
      value = primary();
    value = postfix(std::move(value));
    return with_filter ? filters(std::move(value)) : std::move(value);
  }

  ExpressionPtr constant(Value value) {
    ExpressionPtr made = make(Kind::constant);
    made->value = std::move(value);
    return made;
  }

  ExpressionPtr primary() {
    switch (now().kind) {
      case Token::Kind::name:
        return name();
      case Token::Kind::string: {
        std::string text = take().text;
        while (now().kind == Token::Kind::string) text += take().text;
        return constant(Value::text(std::move(text)));
      }
      case Token::Kind::integer:
      case Token::Kind::real:
        return number();
      default:
        break;
    }
    if (skip_symbol("(")) return parenthesis();
    if (skip_symbol("[")) {
      ExpressionPtr made = make(Kind::list);
      list(*made, "]");
      return made;
    }
    if (skip_symbol("{")) return dict();
    fail(cat("expected an expression and found ", shown()));
  }

  ExpressionPtr name() {
    const std::string text = take().text;
    if (text == "true" || text == "True") return constant(Value::boolean(true));
    if (text == "false" || text == "False") return constant(Value::boolean(false));
    if (text == "none" || text == "None") return constant(Value::none());
    static constexpr std::array<std::string_view, 8> reserved = {"and", "or", "not", "in", "is", "if", "else", "elif"};
    if (std::find(reserved.begin(), reserved.end(), text) != reserved.end())
      fail(cat("expected an expression and found ", text));
    return make(Kind::name, text);
  }

  ExpressionPtr number() {
    const Token token = take();
    if (token.kind == Token::Kind::integer) {
      int64_t value = 0;
      const auto read = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (read.ec != std::errc()) fail(cat("the integer ", clipped(token.text), " is beyond 64 bits"));
      return constant(Value::integer(value));
    }
    double value = 0;
    std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
    return constant(Value::Variant(value));
  }

  ExpressionPtr parenthesis() {
    if (skip_symbol(")")) return make(Kind::list, "tuple");
    ExpressionPtr value = tuple();
    expect_symbol(")");
    return value;
  }

  void list(Expression& made, std::string_view end) {
    while (!skip_symbol(end)) {
      if (!made.children.empty()) {
        expect_symbol(",");
        if (skip_symbol(end)) return;
      }
      adopt(made, expression());
    }
  }

  ExpressionPtr dict() {
    ExpressionPtr made = make(Kind::dict);
    while (!skip_symbol("}")) {
      if (!made->children.empty()) {
        expect_symbol(",");
        if (skip_symbol("}")) break;
      }
      adopt(*made, expression());
      expect_symbol(":");
      adopt(*made, expression());
    }
    return made;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    for (;;) {
      if (skip_symbol("."))
        value = attribute(std::move(value));
      else if (skip_symbol("["))
        value = subscript(std::move(value));
      else if (is_symbol("("))
        value = call(std::move(value));
      else
        return value;
    }
  }

  ExpressionPtr attribute(ExpressionPtr value) {
    if (now().kind == Token::Kind::integer) {
      ExpressionPtr index = number();
      return make_of(Kind::item, {}, std::move(value), std::move(index));
    }
    return make_of(Kind::attribute, expect_name("an attribute"), std::move(value));
  }

  ExpressionPtr subscript(ExpressionPtr value) {
    const auto part = [&]() -> ExpressionPtr { return is_symbol(":") || is_symbol("]") ? nullptr : expression(); };
    ExpressionPtr first = part();
    if (!is_symbol(":")) {
      if (!first) fail("expected an expression and found ]");
      expect_symbol("]");
      return make_of(Kind::item, {}, std::move(value), std::move(first));
    }
    take();
    ExpressionPtr second = part();
    ExpressionPtr third = skip_symbol(":") ? part() : nullptr;
    expect_symbol("]");
    return make_of(Kind::slice, {}, std::move(value), std::move(first), std::move(second), std::move(third));
  }

  void arguments(Expression& made) {
    expect_symbol("(");
    for (bool first = true; !skip_symbol(")"); first = false) {
      if (!first) {
        expect_symbol(",");
        if (skip_symbol(")")) return;
      }
      if (is_symbol("*") || is_symbol("**")) fail("arguments with * are not supported");
      if (now().kind == Token::Kind::name && after().kind == Token::Kind::symbol && after().text == "=") {
        std::string name = take().text;
        take();
        ExpressionPtr value = expression();
        made.height = std::max(made.height, value->height + 1);
        made.named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!made.named.empty()) fail("an argument without a name follows one that has a name");
        adopt(made, expression());
      }
    }
  }

  ExpressionPtr call(ExpressionPtr value) {
    ExpressionPtr made = make_of(Kind::call, {}, std::move(value));
    arguments(*made);
    return made;
  }

  ExpressionPtr filters(ExpressionPtr value) {
    for (;;) {
      if (skip_symbol("|"))
        value = filter(std::move(value));
      else if (skip_name("is"))
        value = test(std::move(value));
      else if (is_symbol("("))
        value = call(std::move(value));
      else
        return value;
    }
  }

  ExpressionPtr filter(ExpressionPtr value) {
    ExpressionPtr made = make_of(Kind::filter, expect_name("a filter"), std::move(value));
    if (!is_filter(made->text))
      fail(cat("the filter ", clipped(made->text), " is not supported", suggestion(made->text, filter_names())));
    if (is_symbol("(")) arguments(*made);
    return made;
  }

  ExpressionPtr test(ExpressionPtr value) {
    const bool negated = skip_name("not");
    ExpressionPtr made = make_of(Kind::test, expect_name("a test"), std::move(value));
    if (!is_test(made->text))
      fail(cat("the test `is ", clipped(made->text), "` is not supported", suggestion(made->text, test_names())));
    using enum Token::Kind;
    if (is_symbol("("))
      arguments(*made);
    else if (now().kind == string || now().kind == integer || now().kind == real || is_symbol("[") || is_symbol("{") ||
             (now().kind == Token::Kind::name && !is_name("else") && !is_name("or") && !is_name("and") &&
              !is_name("if") && !is_name("is") && !is_name("in") && !is_name("not")))
      adopt(*made, postfix(primary()));
    return negated ? make_of(Kind::negation, {}, std::move(made)) : std::move(made);
  }

  const std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  bool in_macro_ = false, has_generation_ = false, in_generation_ = false;
};

}  // namespace

Parsed parse(std::string_view source, const std::string& name) {
  require<DataError>(source.size() <= kMostSource, name, ": a template of more than ", format_bytes(kMostSource),
                     " is not supported");
  return Parser(tokenize(source, name), name).run();
}

}  // namespace witan::jinja
