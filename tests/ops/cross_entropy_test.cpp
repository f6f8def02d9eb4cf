#include "witan/ops/cross_entropy.h"

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/elementwise.h"

namespace witan {
namespace {

using ops::LossGradient;
using test::message_of;
using testing::gradcheck;
using testing::Rank;
using testing::values;

TEST(CrossEntropy, GradientsMatchDifferences) {
  Rank rank;
  const Tensor targets = rank.tensor<int32_t>({4}, {2, 0, -1, 6});
  const Tensor weights = rank.tensor<double>({4}, {0.25, 1, 0, -2});
  gradcheck(rank, "cross_entropy",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::cross_entropy(tape, in[0], targets, weights).loss};
            },
            {rank.normal({4, 7}, DType::f64, "logits")});
}

TEST(CrossEntropy, LossIsTheWeightedSumOfTokenLosses) {
  Rank rank;
  Tape tape(rank.stream, Tape::Mode::off);
  const auto [loss, token_losses] =
      ops::cross_entropy(tape, tape.constant(rank.tensor<float>({2, 2}, {1, 1, 0, 0})),
                         rank.tensor<int32_t>({2}, {0, 1}), rank.tensor<float>({2}, {0.5f, 2}));
  EXPECT_TRUE(testing::close(values(token_losses), {std::log(2.0), std::log(2.0)}, 1e-6, 0));
  EXPECT_NEAR(values(loss.value())[0], 2.5 * std::log(2.0), 1e-6);
}

constexpr int64_t kTokens = 64, kVocabulary = 1024;

struct Outcome {
  std::vector<double> gradient;
  int64_t peak, high_water;
};

// Logits made by an op, and their gradient; `hold` says whether the caller keeps the logits to the end.
Outcome train(Stream& stream, const Tensor& x, const Tensor& targets, const Tensor& weights, bool hold,
              LossGradient gradient = LossGradient::any) {
  Tape tape(stream);
  const Var in = tape.input(x);
  Var loss, held;
  std::vector<double> before;
  {
    Var logits = ops::scale(tape, in, 2);
    if (hold) held = logits;
    if (hold) before = values(held.value());
    loss = ops::cross_entropy(tape, std::move(logits), targets, weights, gradient).loss;
  }
  tape.backward({{loss, {}}});
  if (hold) {
    EXPECT_EQ(values(held.value()), before) << "logits that the caller holds must stay as they are";
  }
  const Arena& arena = stream.arena();
  return {x.is_meta() ? std::vector<double>() : values(tape.gradient(in)), arena.peak(MemoryTag::activations),
          arena.high_water()};
}

Outcome train_on_cpu(bool hold, LossGradient gradient = LossGradient::any) {
  Rank rank;
  const Tensor x = rank.normal({kTokens, kVocabulary}, DType::f32, "x"),
               weights = rank.normal({kTokens}, DType::f32, "weights");
  const Tensor targets = rank.stream.zeros({kTokens}, DType::i32);
  return train(rank.stream, x, targets, weights, hold, gradient);
}

TEST(CrossEntropy, TheGradientTakesTheMemoryOfTheLogits) {
  const Outcome over = train_on_cpu(false), apart = train_on_cpu(true);
  EXPECT_EQ(over.gradient, apart.gradient);
  EXPECT_EQ(apart.peak - over.peak, kTokens * kVocabulary * 4);
}

TEST(CrossEntropy, TheGradientIsTheSameWhenItComesWithTheLoss) {
  const Outcome late = train_on_cpu(false), over = train_on_cpu(false, LossGradient::one),
                apart = train_on_cpu(true, LossGradient::one);
  EXPECT_EQ(over.gradient, late.gradient);
  EXPECT_EQ(apart.gradient, late.gradient);
  EXPECT_LE(over.peak, late.peak);
  EXPECT_EQ(apart.peak - over.peak, kTokens * kVocabulary * 4);
}

TEST(CrossEntropy, MetaEndsAtTheSameAddresses) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  const Tensor x = meta.empty({kTokens, kVocabulary}, DType::f32), weights = meta.empty({kTokens}, DType::f32);
  const Tensor targets = meta.zeros({kTokens}, DType::i32);
  const Outcome planned = train(meta, x, targets, weights, false), real = train_on_cpu(false);
  EXPECT_EQ(planned.high_water, real.high_water);
  EXPECT_EQ(planned.peak, real.peak);
}

TEST(CrossEntropy, WrongInputsAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const Var logits = tape.input(rank.normal({2, 3}, DType::bf16, "logits"));
  const Tensor targets = rank.tensor<int32_t>({2}, {0, 2}), weights = rank.tensor<float>({2}, {1, 1});
  const auto message = [&](const Var& l, const Tensor& t, const Tensor& w) {
    return message_of<ShapeError>([&] { ops::cross_entropy(tape, l, t, w); });
  };
  EXPECT_EQ(message(tape.input(rank.normal({6}, DType::f32, "x")), targets, weights),
            "cross_entropy: logits must be [T, V], floating and contiguous, got float32 [6]");
  EXPECT_EQ(message(logits, rank.tensor<int32_t>({1}, {0}), weights),
            "cross_entropy: targets must be [T=2] int32, got int32 [1]");
  EXPECT_EQ(message(logits, targets, rank.normal({2}, DType::bf16, "w")),
            "cross_entropy: weights must be [T=2] float32, got bfloat16 [2]");
  EXPECT_EQ(message_of<DataError>([&] {
              ops::cross_entropy(tape, logits, rank.tensor<int32_t>({2}, {0, 3}), weights);
            }),
            "cross_entropy: target 3 at index 1 is not one of the 3 logits, and its weight is not 0");
}

TEST(CrossEntropy, NoTokensLoseNothing) {
  Rank rank;
  Tape tape(rank.stream);
  const Var logits = tape.input(rank.stream.empty({0, 3}, DType::f32));
  const auto loss =
      ops::cross_entropy(tape, logits, rank.stream.empty({0}, DType::i32), rank.stream.empty({0}, DType::f32)).loss;
  EXPECT_EQ(values(loss.value()), std::vector<double>{0});
  tape.backward({{loss, {}}});
  EXPECT_EQ(tape.gradient(logits).shape(), (Shape{0, 3}));
}

}  // namespace
}  // namespace witan
