// Syntax trees of expressions as Jinja 3.1.6 parses them (jinja2.Environment().parse), written as lists.
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/tokenizer/chat/lexer.h"
#include "witan/tokenizer/chat/parser.h"

namespace witan::jinja {
namespace {

using test::message_of;

std::string operation(const Expression& e) {
  using Kind = Expression::Kind;
  switch (e.kind) {
    case Kind::list:
      return e.text.empty() ? "list" : e.text;
    case Kind::dict:
      return "dict";
    case Kind::attribute:
      return "." + e.text;
    case Kind::item:
      return "item";
    case Kind::slice:
      return "slice";
    case Kind::call:
      return "call";
    case Kind::filter:
      return "|" + e.text;
    case Kind::test:
      return "is " + e.text;
    case Kind::conditional:
      return "if";
    case Kind::all:
      return "and";
    case Kind::any:
      return "or";
    case Kind::negation:
      return "not";
    case Kind::minus:
      return "negative";
    case Kind::plus:
      return "positive";
    case Kind::compare: {
      std::string all;
      for (const std::string& one : e.operators) all += (all.empty() ? "" : " ") + one;
      return all;
    }
    case Kind::concat:
      return "~";
    default:
      return e.text;
  }
}

std::string list_of(const ExpressionPtr& e) {
  if (!e) return "_";
  if (e->kind == Expression::Kind::constant) return str(e->value);
  if (e->kind == Expression::Kind::name) return e->text;
  std::string all = "(" + operation(*e);
  for (const ExpressionPtr& child : e->children) all += " " + list_of(child);
  for (const auto& [name, value] : e->named) all += " " + name + "=" + list_of(value);
  return all + ")";
}

// Parses the expression between {{ and }}, and appends the rest of the text.
template <class Parse>
std::string parsed(const std::string& source, const Parse& parse) {
  const std::string name = "t";
  TokenCursor cursor(tokenize("{{ " + source + " }}", name), name);
  cursor.take();
  const std::string list = list_of(parse(cursor));
  return list + (cursor.now().kind == Token::Kind::output_end ? "" : " before " + cursor.shown());
}

struct Case {
  const char *source, *list;
};

TEST(ExpressionParser, OperatorsBindLikeJinja) {
  static constexpr Case cases[] = {
      {"1 + 2 * 3", "(+ 1 (* 2 3))"},
      {"1 - 2 - 3", "(- (- 1 2) 3)"},
      {"2 ** 3 ** 2", "(** (** 2 3) 2)"},
      {"-2 ** 2", "(** (negative 2) 2)"},
      {"a ~ b + c ~ d", "(+ (~ a b) (~ c d))"},
      {"a * b ~ c", "(~ (* a b) c)"},
      {"not a == b", "(not (== a b))"},
      {"a or b and not c", "(or a (and b (not c)))"},
      {"a < b <= c", "(< <= a b c)"},
      {"a in b == c", "(in == a b c)"},
      {"a not in b", "(not in a b)"},
      {"x if a else y if b else z", "(if x a (if y b z))"},
      {"x if a", "(if x a _)"},
  };
  for (const auto& [source, list] : cases) EXPECT_EQ(parsed(source, parse_expression), list) << source;
}

TEST(ExpressionParser, ParsesPostfixExpressions) {
  static constexpr Case cases[] = {
      {"-x|int", "(|int (negative x))"},
      {"-x.y[0]", "(negative (item (.y x) 0))"},
      {"a + b|int", "(+ a (|int b))"},
      {"a.b['c'](1, k=2)[::2]", "(slice (call (item (.b a) c) 1 k=2) _ _ 2)"},
      {"x[1:]", "(slice x 1 _ _)"},
      {"x.0.y", "(.y (item x 0))"},
      {"f(x)(y)", "(call (call f x) y)"},
      {"x|join(', ')|trim is string", "(is string (|trim (|join x , )))"},
      {"x|map('int')|list|first", "(|first (|list (|map x int)))"},
      {"x is divisibleby 3 and y", "(and (is divisibleby x 3) y)"},
      {"x is not none or y", "(or (not (is none x)) y)"},
      {"not x is none", "(not (is none x))"},
      {"a is in [1]", "(is in a (list 1))"},
      {"a is sameas b.c", "(is sameas a (.c b))"},
  };
  for (const auto& [source, list] : cases) EXPECT_EQ(parsed(source, parse_expression), list) << source;
}

TEST(ExpressionParser, CollectionsMayBeNested) {
  EXPECT_EQ(parsed("[1, [2], {'k': v}]", parse_expression), "(list 1 (list 2) (dict k v))");
  EXPECT_EQ(parsed("a, b, (), (c,)", parse_tuple), "(tuple a b (tuple) (tuple c))");
  EXPECT_EQ(parsed("'a' 'b'", parse_expression), "ab");
}

// A loop's iterable ends before `if`, which filters its items.
TEST(ExpressionParser, LeavesTheRestOfTheStatement) {
  EXPECT_EQ(parsed("a, b", parse_expression), "a before ,");
  EXPECT_EQ(parsed("a, b or c if d", parse_tuple_without_condition), "(tuple a (or b c)) before if");
  const auto filter = [](TokenCursor& cursor) { return parse_filter(cursor, nullptr); };
  EXPECT_EQ(parsed("replace(a, b)|trim", filter), "(|replace _ a b) before |");
}

TEST(ExpressionParser, ErrorsNameTheReason) {
  const auto refusal = [](const std::string& source) {
    return message_of<DataError>([&] { parsed(source, parse_expression); });
  };
  EXPECT_EQ(refusal("1 +"), "t:1: expected an expression and found }}");
  EXPECT_EQ(refusal("a +\n or"), "t:2: expected an expression and found or");
  EXPECT_EQ(refusal("[1 2]"), "t:1: expected , and found 2");
  EXPECT_EQ(refusal("{'a' 1}"), "t:1: expected : and found 1");
  EXPECT_EQ(refusal("a[]"), "t:1: expected an expression and found ]");
  EXPECT_EQ(refusal("a."), "t:1: expected an attribute and found }}");
  EXPECT_EQ(refusal("f(k=1, 2)"), "t:1: an argument without a name follows one that has a name");
}

}  // namespace
}  // namespace witan::jinja
