#include <gtest/gtest.h>

#include <limits>

#include "serve/parrot.h"
#include "witan/serve/answer.h"

namespace witan {
namespace {

// JSON has no infinity, so an impossible token gets the log probability that OpenAI's servers report.
TEST(AnswerJson, ImpossibleTokensHaveAFiniteLogprob) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  test::Parrot parrot;
  const Tokenizer tokenizer = test::served(parrot).tokenizer;
  const std::vector<serve::PlacedToken> tokens = {{{'a', kNever, {{'b', -0.5F}, {'c', kNever}}}, 0}};
  const nlohmann::json completion = serve::completion_logprobs(tokenizer, tokens, 2);
  EXPECT_EQ(completion["token_logprobs"][0], -9999.0);
  EXPECT_EQ(completion["top_logprobs"][0], (nlohmann::json{{"a", -9999.0}, {"b", -0.5}, {"c", -9999.0}}));
  const nlohmann::json chat = serve::chat_logprobs(tokenizer, tokens)["content"][0];
  EXPECT_EQ(chat["logprob"], -9999.0);
  EXPECT_EQ(chat["top_logprobs"][1]["logprob"], -9999.0);
  EXPECT_EQ(completion.dump().find("null"), std::string::npos);
}

}  // namespace
}  // namespace witan
