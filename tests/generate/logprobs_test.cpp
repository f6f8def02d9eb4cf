#include "witan/generate/logprobs.h"

#include <algorithm>
#include <cmath>

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/base/error.h"
#include "witan/ops/vocabulary/vocabulary.h"

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

// The log probability of a token is minus its loss, whichever op training takes it from.
TEST(Logprobs, HaveTheBitsOfEveryLoss) {
  constexpr int64_t T = 5, kWords = 259, V = 264;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Rank rank;
    const Tensor logits = rank.normal({T, V}, dtype, "logits", 3), weights = rank.stream.empty({T}, DType::f32);
    const std::vector<int32_t> targets = {0, 7, 258, 100, 3};
    const Tensor ids = rank.tensor<int32_t>({T}, targets);
    std::ranges::fill(weights.span<float>(), 0.25f);
    const std::vector<float> logprobs = score_rows(rank.stream, logits, targets, kWords).logprobs;
    const ops::VocabularyPart part{0, kWords, V - kWords};
    const auto expect = [&](const Tensor& losses) {
      for (int64_t t = 0; t < T; ++t) EXPECT_EQ(-losses.data<float>()[t], logprobs[static_cast<size_t>(t)]) << t;
    };
    for (const auto gradient : {ops::LossGradient::any, ops::LossGradient::one}) {
      Tape tape(rank.stream);
      expect(ops::cross_entropy(tape, tape.input(logits), ids, weights, part, nullptr, gradient).token_losses);
    }
    Tape tape(rank.stream);
    expect(ops::token_losses(tape, tape.input(logits), ids, weights, part, nullptr).losses.value());
  }
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
