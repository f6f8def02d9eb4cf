#include "witan/train/rollouts/math_answer.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace witan {
namespace {

TEST(MathAnswer, IsFoundInAText) {
  EXPECT_EQ(final_answer("so \\boxed{3} and then \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(final_answer("4 + 8 = 12\n#### 12"), "12");
  EXPECT_EQ(final_answer("Hence the answer is: 7. That is all"), "7");
  EXPECT_EQ(final_answer("the answer is 2.5\nindeed"), "2.5");
  EXPECT_EQ(final_answer(" 42 \n"), "42");
  EXPECT_EQ(final_answer("\\boxed{never closed"), "\\boxed{never closed");
  EXPECT_EQ(final_answer(""), "");
}

TEST(MathAnswer, EqualsAnotherOfTheSameValue) {
  for (const auto& [given, expected] : {std::pair{"\\boxed{\\frac{1}{2}}", "0.5"},
                                        {"\\frac12", "1/2"},
                                        {"\\dfrac{3}{4}", ".75"},
                                        {"-\\frac{2}{4}", "-0.5"},
                                        {"1,234,567", "1234567"},
                                        {"$12.50", "12.5"},
                                        {"12 cm", "12"},
                                        {"12\\text{ cm}^2", "12"},
                                        {"90^\\circ", "90"},
                                        {"50\\%", "0.5"},
                                        {"50\\%", "50"},
                                        {"1\\frac{1}{2}", "1.5"},
                                        {"-1\\frac{1}{2}", "-1.5"},
                                        {"2\\sqrt{2}", "\\sqrt{8}"},
                                        {"\\sqrt[3]{27}", "3"},
                                        {"2\\pi", "2 \\cdot \\pi"},
                                        {"2^{10}", "1024"},
                                        {"2^{-1}", "0.5"},
                                        {"1.2e3", "1200"},
                                        {"x = 5", "5"},
                                        {"(1+2)*3", "9"},
                                        {"\\left(1, 2\\right)", "(1,2)"},
                                        {"(\\frac{1}{2}, 3]", "(0.5, 3]"},
                                        {"1, 2, 3", "1,2,3"},
                                        {"\\{1, 2\\}", "\\{1.0, 2\\}"},
                                        {"\\text{even}", "even"},
                                        {"x^2 + 1", "x^2+1"}})
    EXPECT_TRUE(same_answer(given, expected)) << given << " and " << expected;
}

TEST(MathAnswer, DiffersFromOthers) {
  for (const auto& [given, expected] : {std::pair{"1/3", "0.333"},
                                        {"0.1", "0.1001"},
                                        {"5x", "5"},
                                        {"(1, 2)", "[1, 2]"},
                                        {"(1, 2)", "(2, 1)"},
                                        {"1, 2", "1, 2, 3"},
                                        {"even", "odd"},
                                        {"", "0"},
                                        {"", ""},
                                        {"1/0", "2/0"},
                                        {"-4", "4"},
                                        {"12", "1 2"}})
    EXPECT_FALSE(same_answer(given, expected)) << given << " and " << expected;
}

// A model may write anything.
TEST(MathAnswer, SurvivesNonsense) {
  const std::string deep(5000, '('), boxes = "\\boxed{" + std::string(5000, '{');
  for (const std::string& text :
       {deep, boxes, std::string("\\frac"), std::string("\\frac{1}{"), std::string("\\sqrt["), std::string("1e999"),
        std::string("-------1"), std::string(900, '-') + "1", std::string("\\text{"), std::string("}{"),
        std::string(400, '(') + std::string(400, ')'), std::string("^^^"), std::string(1, '\0')})
    EXPECT_FALSE(same_answer(text, "1")) << text.substr(0, 20);
}

}  // namespace
}  // namespace witan
