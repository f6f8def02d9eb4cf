#include "witan/generate/logprobs.h"

#include <cmath>

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using testing::Rank;

TEST(Logprobs, ExcludePadding) {
  Rank rank;
  const Tensor logits = rank.tensor<float>({2, 4}, {0, 1, 2, 100, 3, 3, 3, 100});  // the last column is padding
  const RowScores scores = score_rows(rank.stream, logits, std::vector<int32_t>{2, 0}, 3);
  const double sum = 1 + std::exp(1.0) + std::exp(2.0);
  EXPECT_NEAR(scores.logprobs[0], 2 - std::log(sum), 1e-6);
  EXPECT_NEAR(scores.lse[0], std::log(sum), 1e-6);
  EXPECT_NEAR(scores.logprobs[1], -std::log(3.0), 1e-6);
  EXPECT_EQ(test::message_of<ShapeError>([&] { score_rows(rank.stream, logits, std::vector<int32_t>{1}, 3); }),
            "logprobs: 2 rows of logits for 1 tokens");
}

TEST(Logprobs, TopTokensAreSorted) {
  const std::vector<float> logits = {0.5f, 2, -1, 2};
  const auto top = likeliest(logits, 3, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[1].token, 3);
  EXPECT_EQ(top[2].token, 0);
  EXPECT_EQ(top[0].logprob, -1);
  EXPECT_EQ(top[2].logprob, -2.5f);
  EXPECT_EQ(likeliest(logits, 3, 9).size(), 4u);
}

}  // namespace
}  // namespace witan
