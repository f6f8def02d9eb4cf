// Answers to mathematical problems, compared by their values.
#pragma once

#include <string>
#include <string_view>

namespace witan {

// The final answer within a text: the content of its last \boxed{...}, else what follows its last "####", else what
// follows its last "answer is" up to the end of the sentence, else the whole text, without white space around it.
std::string final_answer(std::string_view text);

// Whether the final answers of both texts are the same: equal values of expressions (integers, decimals, "1,000",
// fractions as a/b or \frac{a}{b}, mixed numbers, powers, roots, pi, + - * / and brackets, up to a relative 1e-9),
// equal members of tuples, intervals and lists, or equal texts apart from white space and LaTeX's spacing, sizes and
// \text. Dollar and degree signs and units after a number do not count; a percentage also equals its value, 50% = 0.5.
bool same_answer(std::string_view given, std::string_view expected);

}  // namespace witan
