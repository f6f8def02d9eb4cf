#include "witan/tokenizer/chat/parser.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan::jinja {
namespace {

using test::message_of;
using Kind = Statement::Kind;

Block parsed(const std::string& source) {
  return parse(source, "t").block;
}

std::string refusal(const std::string& source) {
  return message_of<DataError>([&] { parsed(source); });
}

TEST(Parser, ParsesBranchesWithElifAndElse) {
  const Block block = parsed("a{% if x %}b{% elif y %}{% else %}c{{ d }}{% endif %}");
  ASSERT_EQ(block.size(), 2u);
  EXPECT_EQ(block[0].text, "a");
  const Statement& branch = block[1];
  ASSERT_EQ(branch.kind, Kind::branch);
  EXPECT_EQ(branch.conditions.size(), 2u);
  ASSERT_EQ(branch.bodies.size(), 3u);
  EXPECT_EQ(branch.bodies[0].at(0).text, "b");
  EXPECT_TRUE(branch.bodies[1].empty());
  EXPECT_EQ(branch.bodies[2].at(0).text, "c");
  EXPECT_EQ(branch.bodies[2].at(1).kind, Kind::output);
}

std::string shown(const Target& target) {
  if (target.parts.empty()) return target.name;
  std::string parts;
  for (const Target& part : target.parts) parts += (parts.empty() ? "(" : ", ") + shown(part);
  return parts + ")";
}

TEST(Parser, AcceptsParenthesizedNames) {
  const Block block =
      parsed("{% for i, (k, v) in c %}{% endfor %}{% set ((a), b) = c %}{% for (x) in c %}{% endfor %}");
  EXPECT_EQ(shown(block.at(0).target), "(i, (k, v))");
  EXPECT_EQ(shown(block.at(1).target), "(a, b)");
  EXPECT_EQ(shown(block.at(2).target), "x");
}

TEST(Parser, ParsesLoopsWithConditionAndElse) {
  const Block block = parsed("{% for a, b in c if d %}{% break %}{% else %}e{% endfor %}");
  ASSERT_EQ(block.size(), 1u);
  const Statement& loop = block[0];
  ASSERT_EQ(loop.kind, Kind::loop);
  EXPECT_EQ(shown(loop.target), "(a, b)");
  EXPECT_EQ(loop.expression->text, "c");
  ASSERT_EQ(loop.conditions.size(), 1u);
  EXPECT_EQ(loop.conditions[0]->text, "d");
  ASSERT_EQ(loop.bodies.size(), 2u);
  EXPECT_EQ(loop.bodies[0].at(0).kind, Kind::stop);
  EXPECT_EQ(loop.bodies[1].at(0).text, "e");
}

TEST(Parser, ParsesSetOfValueAttributeAndBlock) {
  const Block block = parsed("{% set a, b = c %}{% set n.x = 1 %}{% set t | trim | upper %} y {% endset %}");
  ASSERT_EQ(block.size(), 3u);
  EXPECT_EQ(shown(block[0].target), "(a, b)");
  EXPECT_EQ(shown(block[1].target), "n");
  EXPECT_EQ(block[1].attribute, "x");
  ASSERT_EQ(block[2].kind, Kind::set_block);
  ASSERT_EQ(block[2].filters.size(), 2u);
  EXPECT_EQ(block[2].filters[1]->text, "upper");
  EXPECT_EQ(block[2].bodies.at(0).at(0).text, " y ");
}

TEST(Parser, ParsesMacrosWithDefaults) {
  const Block block = parsed("{% macro m(a, b=1) %}{{ a }}{% endmacro m %}");
  ASSERT_EQ(block.at(0).kind, Kind::macro);
  ASSERT_EQ(block[0].parameters.size(), 2u);
  EXPECT_EQ(block[0].parameters[0].first, "a");
  EXPECT_FALSE(block[0].parameters[0].second);
  EXPECT_TRUE(block[0].parameters[1].second);
}

TEST(Parser, DetectsGenerationBlocks) {
  EXPECT_FALSE(parse("{% if x %}{% endif %}", "t").has_generation);
  EXPECT_TRUE(parse("{% if x %}{% generation %}{% endgeneration %}{% endif %}", "t").has_generation);
  EXPECT_EQ(refusal("{% generation %}\n{% generation %}{% endgeneration %}{% endgeneration %}"),
            "t:2: {% generation %} within another one is not supported");
}

TEST(Parser, ErrorsNameTheReason) {
  EXPECT_EQ(refusal("{% break %}"), "t:1: {% break %} is not in a loop");
  EXPECT_EQ(refusal("{% for x in y %}{% endfor %}{% continue %}"), "t:1: {% continue %} is not in a loop");
  EXPECT_EQ(refusal("{% for x of y %}"), "t:1: expected in and found of");
  EXPECT_EQ(refusal("{% if x y %}"), "t:1: expected %} and found y");
  EXPECT_EQ(refusal("{{ x y }}"), "t:1: expected }} and found y");
  EXPECT_EQ(refusal("{% set a, b %}{% endset %}"), "t:1: expected = and found %}");
  EXPECT_EQ(refusal("{% for x in y %}\n{% else %}\n{% elif %}"), "t:3: {% elif %} has no matching opening block");
}

}  // namespace
}  // namespace witan::jinja
