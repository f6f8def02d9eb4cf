#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/builtins.h"
#include "witan/tokenizer/chat/parser.h"

namespace witan::jinja {
namespace {

constexpr int kMostHeight = 400;  // of an expression's tree

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor& cursor) : cursor_(cursor) {}

  ExpressionPtr expression() {
    const TokenCursor::Nesting nesting(cursor_);
    ExpressionPtr value = any();
    while (cursor_.skip_name("if")) {
      ExpressionPtr condition = any();
      ExpressionPtr other = cursor_.skip_name("else") ? expression() : nullptr;
      value = make_of(Kind::conditional, {}, std::move(value), std::move(condition), std::move(other));
    }
    return value;
  }

  ExpressionPtr tuple() {
    return tuple_of([&] { return expression(); });
  }
  ExpressionPtr tuple_without_condition() {
    return tuple_of([&] { return any(); });
  }

  ExpressionPtr filter(ExpressionPtr value) {
    ExpressionPtr made = make_of(Kind::filter, cursor_.expect_name("a filter"), std::move(value));
    if (!is_filter(made->text))
      cursor_.fail(
          cat("the filter ", clipped(made->text), " is not supported", suggestion(made->text, filter_names())));
    if (cursor_.is_symbol("(")) arguments(*made);
    return made;
  }

 private:
  using Kind = Expression::Kind;

  ExpressionPtr make(Kind kind, std::string text = {}) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = cursor_.now().line;
    made->text = std::move(text);
    return made;
  }

  void adopt(Expression& parent, ExpressionPtr child) const {
    if (child) parent.height = std::max(parent.height, child->height + 1);
    if (parent.height > kMostHeight)
      cursor_.fail(cat("an expression has more than ", kMostHeight, " operations in a row"));
    parent.children.push_back(std::move(child));
  }

  template <class... Children>
  ExpressionPtr make_of(Kind kind, std::string text, Children... children) const {
    ExpressionPtr made = make(kind, std::move(text));
    (adopt(*made, std::move(children)), ...);
    return made;
  }

  bool at_end() const {
    return cursor_.now().kind == Token::Kind::output_end || cursor_.now().kind == Token::Kind::block_end ||
           cursor_.is_symbol(")");
  }

  // One item, or several separated by commas.
  template <class Item>
  ExpressionPtr tuple_of(const Item& item) {
    ExpressionPtr first = item();
    if (!cursor_.is_symbol(",")) return first;
    ExpressionPtr made = make(Kind::list, "tuple");
    adopt(*made, std::move(first));
    while (cursor_.skip_symbol(",") && !at_end()) adopt(*made, item());
    return made;
  }

  // Operands joined by the same operator.
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
        Kind::any, [&] { return cursor_.skip_name("or"); }, [&] { return all(); });
  }
  ExpressionPtr all() {
    return chain(
        Kind::all, [&] { return cursor_.skip_name("and"); }, [&] { return negation(); });
  }
  ExpressionPtr negation() {
    const TokenCursor::Nesting nesting(cursor_);
    if (cursor_.skip_name("not")) return make_of(Kind::negation, {}, negation());
    return comparison();
  }

  std::string comparison_operator() {
    for (const std::string_view one : {"==", "!=", "<=", ">=", "<", ">"})
      if (cursor_.skip_symbol(one)) return std::string(one);
    if (cursor_.skip_name("in")) return "in";
    if (cursor_.is_name("not") && cursor_.after().kind == Token::Kind::name && cursor_.after().text == "in") {
      cursor_.take();
      cursor_.take();
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
  ExpressionPtr arithmetic(std::initializer_list<std::string_view> symbols, const Operand& operand) {
    ExpressionPtr value = operand();
    for (;;) {
      const auto found =
          std::find_if(symbols.begin(), symbols.end(), [&](auto symbol) { return cursor_.is_symbol(symbol); });
      if (found == symbols.end()) return value;
      cursor_.take();
      ExpressionPtr right = operand();
      value = make_of(Kind::arithmetic, std::string(*found), std::move(value), std::move(right));
    }
  }

  ExpressionPtr sum() {
    return arithmetic({"+", "-"}, [&] { return concat(); });
  }
  ExpressionPtr concat() {
    return chain(
        Kind::concat, [&] { return cursor_.skip_symbol("~"); }, [&] { return product(); });
  }
  ExpressionPtr product() {
    return arithmetic({"*", "/", "//", "%"}, [&] { return power(); });
  }
  ExpressionPtr power() {
    return arithmetic({"**"}, [&] { return unary(true); });
  }

  ExpressionPtr unary(bool with_filter) {
    const TokenCursor::Nesting nesting(cursor_);
    ExpressionPtr value;
    if (cursor_.skip_symbol("-"))
      value = make_of(Kind::minus, {}, unary(false));
    else if (cursor_.skip_symbol("+"))
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
    switch (cursor_.now().kind) {
      case Token::Kind::name:
        return name();
      case Token::Kind::string: {
        std::string text = cursor_.take().text;
        while (cursor_.now().kind == Token::Kind::string) text += cursor_.take().text;
        return constant(Value::text(std::move(text)));
      }
      case Token::Kind::integer:
      case Token::Kind::real:
        return number();
      default:
        break;
    }
    if (cursor_.skip_symbol("(")) return parenthesis();
    if (cursor_.skip_symbol("[")) {
      ExpressionPtr made = make(Kind::list);
      list(*made, "]");
      return made;
    }
    if (cursor_.skip_symbol("{")) return dict();
    cursor_.fail(cat("expected an expression and found ", cursor_.shown()));
  }

  ExpressionPtr name() {
    const std::string text = cursor_.take().text;
    if (text == "true" || text == "True") return constant(Value::boolean(true));
    if (text == "false" || text == "False") return constant(Value::boolean(false));
    if (text == "none" || text == "None") return constant(Value::none());
    static constexpr std::array<std::string_view, 8> reserved = {"and", "or", "not", "in", "is", "if", "else", "elif"};
    if (std::find(reserved.begin(), reserved.end(), text) != reserved.end())
      cursor_.fail(cat("expected an expression and found ", text));
    return make(Kind::name, text);
  }

  ExpressionPtr number() {
    const Token token = cursor_.take();
    if (token.kind == Token::Kind::integer) return constant(Value::integer(token.text));
    return constant(Value::Variant(std::strtod(token.text.c_str(), nullptr)));
  }

  ExpressionPtr parenthesis() {
    if (cursor_.skip_symbol(")")) return make(Kind::list, "tuple");
    ExpressionPtr value = tuple();
    cursor_.expect_symbol(")");
    return value;
  }

  void list(Expression& made, std::string_view end) {
    while (!cursor_.skip_symbol(end)) {
      if (!made.children.empty()) {
        cursor_.expect_symbol(",");
        if (cursor_.skip_symbol(end)) return;
      }
      adopt(made, expression());
    }
  }

  ExpressionPtr dict() {
    ExpressionPtr made = make(Kind::dict);
    while (!cursor_.skip_symbol("}")) {
      if (!made->children.empty()) {
        cursor_.expect_symbol(",");
        if (cursor_.skip_symbol("}")) break;
      }
      adopt(*made, expression());
      cursor_.expect_symbol(":");
      adopt(*made, expression());
    }
    return made;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    for (;;) {
      if (cursor_.skip_symbol("."))
        value = attribute(std::move(value));
      else if (cursor_.skip_symbol("["))
        value = subscript(std::move(value));
      else if (cursor_.is_symbol("("))
        value = call(std::move(value));
      else
        return value;
    }
  }

  ExpressionPtr attribute(ExpressionPtr value) {
    if (cursor_.now().kind == Token::Kind::integer) {
      ExpressionPtr index = number();
      return make_of(Kind::item, {}, std::move(value), std::move(index));
    }
    return make_of(Kind::attribute, cursor_.expect_name("an attribute"), std::move(value));
  }

  ExpressionPtr subscript(ExpressionPtr value) {
    const auto part = [&]() -> ExpressionPtr {
      return cursor_.is_symbol(":") || cursor_.is_symbol("]") ? nullptr : expression();
    };
    ExpressionPtr first = part();
    if (!cursor_.is_symbol(":")) {
      if (!first) cursor_.fail("expected an expression and found ]");
      cursor_.expect_symbol("]");
      return make_of(Kind::item, {}, std::move(value), std::move(first));
    }
    cursor_.take();
    ExpressionPtr second = part();
    ExpressionPtr third = cursor_.skip_symbol(":") ? part() : nullptr;
    cursor_.expect_symbol("]");
    return make_of(Kind::slice, {}, std::move(value), std::move(first), std::move(second), std::move(third));
  }

  void arguments(Expression& made) {
    cursor_.expect_symbol("(");
    for (bool first = true; !cursor_.skip_symbol(")"); first = false) {
      if (!first) {
        cursor_.expect_symbol(",");
        if (cursor_.skip_symbol(")")) return;
      }
      if (cursor_.is_symbol("*") || cursor_.is_symbol("**")) cursor_.fail("arguments with * are not supported");
      if (cursor_.now().kind == Token::Kind::name && cursor_.after().kind == Token::Kind::symbol &&
          cursor_.after().text == "=") {
        std::string name = cursor_.take().text;
        cursor_.take();
        ExpressionPtr value = expression();
        made.height = std::max(made.height, value->height + 1);
        made.named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!made.named.empty()) cursor_.fail("an argument without a name follows one that has a name");
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
      if (cursor_.skip_symbol("|"))
        value = filter(std::move(value));
      else if (cursor_.skip_name("is"))
        value = test(std::move(value));
      else if (cursor_.is_symbol("("))
        value = call(std::move(value));
      else
        return value;
    }
  }

  ExpressionPtr test(ExpressionPtr value) {
    const bool negated = cursor_.skip_name("not");
    ExpressionPtr made = make_of(Kind::test, cursor_.expect_name("a test"), std::move(value));
    if (!is_test(made->text))
      cursor_.fail(
          cat("the test `is ", clipped(made->text), "` is not supported", suggestion(made->text, test_names())));
    using enum Token::Kind;
    if (cursor_.is_symbol("("))
      arguments(*made);
    else if (cursor_.now().kind == string || cursor_.now().kind == integer || cursor_.now().kind == real ||
             cursor_.is_symbol("[") || cursor_.is_symbol("{") ||
             (cursor_.now().kind == Token::Kind::name && !cursor_.is_name("else") && !cursor_.is_name("or") &&
              !cursor_.is_name("and") && !cursor_.is_name("if") && !cursor_.is_name("is") && !cursor_.is_name("in") &&
              !cursor_.is_name("not")))
      adopt(*made, postfix(primary()));
    return negated ? make_of(Kind::negation, {}, std::move(made)) : std::move(made);
  }

  TokenCursor& cursor_;
};

}  // namespace

ExpressionPtr parse_expression(TokenCursor& cursor) {
  return ExpressionParser(cursor).expression();
}

ExpressionPtr parse_tuple(TokenCursor& cursor) {
  return ExpressionParser(cursor).tuple();
}

ExpressionPtr parse_tuple_without_condition(TokenCursor& cursor) {
  return ExpressionParser(cursor).tuple_without_condition();
}

ExpressionPtr parse_filter(TokenCursor& cursor, ExpressionPtr value) {
  return ExpressionParser(cursor).filter(std::move(value));
}

}  // namespace witan::jinja
