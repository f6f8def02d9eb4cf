#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/vocabulary/vocabulary.h"

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

TEST(TokenLosses, GradientsMatchDifferences) {
  Rank rank;
  const Tensor targets = rank.tensor<int32_t>({4}, {2, 0, 5, 6});
  const Tensor weights = rank.tensor<double>({4}, {1, 1, 0.5, 1});
  gradcheck(rank, "token_losses",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::token_losses(tape, in[0], targets, weights, {0, 7}, nullptr).losses};
            },
            {rank.normal({4, 7}, DType::f64, "logits")});
}

// Losses and entropies of whole logits and of logits that ranks divide, with padding and a column without probability.
TEST(TokenLosses, HasTheLossesAndEntropiesOfTokens) {
  constexpr int64_t kWords = 7, kColumns = 4;
  Rank rank;
  const Tensor logits = rank.normal({3, 2 * kColumns}, DType::f64, "logits");
  logits.data<double>()[3] = -std::numeric_limits<double>::infinity();
  const std::vector<int32_t> targets = {2, 6, 0};
  const std::vector<double> weights = {0.5, 2, 0};
  std::vector<double> losses, entropies;
  for (size_t t = 0; t < 3; ++t) {
    const double* row = logits.data<double>() + t * 2 * kColumns;
    double sum = 0, entropy = 0;
    for (int64_t v = 0; v < kWords; ++v) sum += std::exp(row[v]);
    for (int64_t v = 0; v < kWords; ++v)
      if (const double p = std::exp(row[v]) / sum; p > 0) entropy -= p * std::log(p);
    losses.push_back(weights[t] == 0 ? 0 : std::log(sum) - row[targets[t]]);
    entropies.push_back(weights[t] == 0 ? 0 : entropy);
  }
  testing::on_ranks(2, [&](testing::ThreadRank& own) {
    const auto group = own.everyone("tensor");
    for (const bool divided : {false, true}) {
      Tape tape(own.stream, Tape::Mode::off);
      const int64_t begin = divided ? own.rank * kColumns : 0, columns = divided ? kColumns : 2 * kColumns;
      std::vector<double> part;
      for (int64_t t = 0; t < 3; ++t)
        part.insert(part.end(), logits.data<double>() + t * 2 * kColumns + begin,
                    logits.data<double>() + t * 2 * kColumns + begin + columns);
      const auto found = ops::token_losses(tape, tape.constant(own.tensor<double>({3, columns}, part)),
                                           own.tensor<int32_t>({3}, targets), own.tensor<double>({3}, weights),
                                           {begin, kWords, 1}, divided ? group.get() : nullptr);
      EXPECT_TRUE(testing::close(values(found.losses.value()), losses, 1e-13, 0));
      EXPECT_TRUE(testing::close(values(found.entropies), entropies, 1e-13, 0));
    }
  });
}

constexpr int64_t kTokens = 64, kVocabulary = 1024;

struct Outcome {
  std::vector<double> gradient;
  int64_t peak, high_water;
};

// Logits computed by an op, and their gradient; `hold`: whether the caller keeps the logits to the end.
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

TEST(CrossEntropy, GradientTakesTheMemoryOfTheLogits) {
  const Outcome over = train_on_cpu(false), apart = train_on_cpu(true);
  EXPECT_EQ(over.gradient, apart.gradient);
  EXPECT_EQ(apart.peak - over.peak, kTokens * kVocabulary * 4);
}

TEST(CrossEntropy, GradientIsTheSameIfComputedWithTheLoss) {
  const Outcome late = train_on_cpu(false), over = train_on_cpu(false, LossGradient::one),
                apart = train_on_cpu(true, LossGradient::one);
  EXPECT_EQ(over.gradient, late.gradient);
  EXPECT_EQ(apart.gradient, late.gradient);
  EXPECT_LE(over.peak, late.peak);
  EXPECT_EQ(apart.peak - over.peak, kTokens * kVocabulary * 4);
}

TEST(CrossEntropy, MetaDeviceGetsTheSameAddresses) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  const Tensor x = meta.empty({kTokens, kVocabulary}, DType::f32), weights = meta.empty({kTokens}, DType::f32);
  const Tensor targets = meta.zeros({kTokens}, DType::i32);
  const Outcome planned = train(meta, x, targets, weights, false), real = train_on_cpu(false);
  EXPECT_EQ(planned.high_water, real.high_water);
  EXPECT_EQ(planned.peak, real.peak);
}

// All ranks perturb the same element of the whole logits, of which each takes its columns.
TEST(CrossEntropy, GradientsOfDividedLogitsMatchDifferences) {
  testing::on_ranks(3, [](testing::ThreadRank& rank) {
    const auto group = rank.everyone("tensor");
    const Tensor targets = rank.tensor<int32_t>({4}, {2, 0, -1, 5});
    const Tensor weights = rank.tensor<double>({4}, {0.25, 1, 0, -2});
    gradcheck(rank, "cross_entropy",
              [&](Tape& tape, const std::vector<Var>& in) {
                const Var mine = ops::redistribute(tape, in[0], *group, Placement::replicate(), Placement::shard(1));
                return std::vector{
                    ops::cross_entropy(tape, mine, targets, weights, {2 * group->rank(), 6}, group.get()).loss};
              },
              {rank.normal({4, 6}, DType::f64, "logits")});
  });
}

struct DividedLoss {
  std::vector<double> loss, token_losses, gradient;
  int64_t peak;
};

// The columns [begin, end) of logits [T, V] computed by an op; `group` null: a single rank.
DividedLoss divided_loss(Rank& rank, DType dtype, int64_t begin, int64_t end, int64_t V, Group* group,
                         LossGradient gradient) {
  constexpr int64_t T = 5;
  const Tensor whole = rank.normal({T, V}, dtype, "logits", 3), mine = rank.stream.empty({T, end - begin}, dtype);
  dispatch_floating(dtype, [&]<class E>() {
    for (int64_t t = 0; t < T; ++t)
      std::copy_n(whole.data<E>() + t * V + begin, end - begin, mine.data<E>() + t * (end - begin));
  });
  const Tensor targets = rank.tensor<int32_t>({T}, {0, 10, -1, 6, 3});
  const Tensor weights = rank.normal({T}, accumulator(dtype), "weights");
  dispatch_floating(weights.dtype(), [&]<class A>() { weights.data<A>()[2] = A(0.0f); });
  Tape tape(rank.stream);
  const Var in = tape.input(mine);
  Var logits = ops::scale(tape, in, 2);
  const auto [loss, losses] =
      group ? ops::cross_entropy(tape, std::move(logits), targets, weights, {begin, V}, group, gradient)
            : ops::cross_entropy(tape, std::move(logits), targets, weights, gradient);
  tape.backward({{loss, {}}});
  return {values(loss.value()), values(losses), values(tape.gradient(in)),
          rank.stream.arena().peak(MemoryTag::activations)};
}

// The columns are divided as unevenly as possible.
TEST(CrossEntropy, DividedLogitsMatchTheWhole) {
  constexpr int64_t V = 11;
  for (const LossGradient gradient : {LossGradient::any, LossGradient::one})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const std::vector<int64_t>& bounds : {std::vector<int64_t>{0, 6, 11}, {0, 11, 11, 11}, {0, 3, 6, 6, 11}})
        testing::on_ranks(static_cast<int>(bounds.size()) - 1, [&](testing::ThreadRank& rank) {
          const auto group = rank.everyone("tensor");
          const int64_t begin = bounds[static_cast<size_t>(rank.rank)],
                        end = bounds[static_cast<size_t>(rank.rank) + 1];
          const DividedLoss whole = divided_loss(rank, dtype, 0, V, V, nullptr, gradient),
                            mine = divided_loss(rank, dtype, begin, end, V, group.get(), gradient);
          const double tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
          EXPECT_TRUE(testing::close(mine.token_losses, whole.token_losses, tolerance, tolerance));
          EXPECT_TRUE(testing::close(mine.loss, whole.loss, 6 * tolerance, tolerance));
          std::vector<double> columns;
          for (int64_t t = 0; t < 5; ++t)
            columns.insert(columns.end(), whole.gradient.begin() + t * V + begin, whole.gradient.begin() + t * V + end);
          EXPECT_TRUE(testing::close(mine.gradient, columns, tolerance, dtype == DType::bf16 ? 1e-2 : 10 * tolerance));
          // Every rank has the same bits.
          const auto n = static_cast<int64_t>(bounds.size()) - 1;
          const Tensor losses =
                           rank.tensor<double>({6}, {mine.loss[0], mine.token_losses[0], mine.token_losses[1],
                                                     mine.token_losses[2], mine.token_losses[3], mine.token_losses[4]}),
                       all = rank.stream.empty({n * 6}, DType::f64);
          group->all_gather(rank.stream, all, losses);
          for (int64_t i = 0; i < n * 6; ++i) EXPECT_EQ(all.data<double>()[i], losses.data<double>()[i % 6]);
        });
}

// Columns after the words are ignored, on one rank and on several, the last of which may have no words.
TEST(CrossEntropy, IgnoresPaddingColumns) {
  constexpr int64_t T = 5, V = 11;
  for (const LossGradient gradient : {LossGradient::any, LossGradient::one})
    for (const std::vector<int64_t>& bounds : {std::vector<int64_t>{0, 16}, {0, 8, 16}, {0, 6, 12, 18}}) {
      const int64_t padding = bounds.back() - V;
      testing::on_ranks(static_cast<int>(bounds.size()) - 1, [&](testing::ThreadRank& rank) {
        const auto group = rank.everyone("tensor");
        const int64_t begin = bounds[static_cast<size_t>(rank.rank)],
                      own = bounds[static_cast<size_t>(rank.rank) + 1] - begin, words = std::min(own, V - begin);
        const DividedLoss whole = divided_loss(rank, DType::f64, 0, V, V, nullptr, gradient);
        const Tensor logits = rank.normal({T, V}, DType::f64, "logits", 3), mine = rank.poisoned({T, own}, DType::f64);
        for (int64_t t = 0; t < T; ++t)
          std::copy_n(logits.data<double>() + t * V + begin, words, mine.data<double>() + t * own);
        const Tensor weights = rank.normal({T}, DType::f64, "weights");
        weights.data<double>()[2] = 0;
        Tape tape(rank.stream);
        const Var in = tape.input(mine);
        const auto [loss, losses] =
            ops::cross_entropy(tape, ops::scale(tape, in, 2), rank.tensor<int32_t>({T}, {0, 10, -1, 6, 3}), weights,
                               {begin, V, padding}, group.get(), gradient);
        tape.backward({{loss, {}}});
        EXPECT_TRUE(testing::close(values(losses), whole.token_losses, 1e-14, 1e-14));
        EXPECT_TRUE(testing::close(values(loss.value()), whole.loss, 1e-13, 1e-13));
        const auto found = values(tape.gradient(in));
        for (int64_t t = 0; t < T; ++t)
          for (int64_t v = 0; v < own; ++v) {
            const double here = found[static_cast<size_t>(t * own + v)];
            const double there = v < words ? whole.gradient[static_cast<size_t>(t * V + begin + v)] : 0;
            EXPECT_NEAR(here, there, v < words ? 1e-13 : 0);
          }
      });
    }
}

TEST(CrossEntropy, AGroupOfOneRankChangesNothing) {
  MetaGroup alone(1, 0, "tensor");
  for (const LossGradient gradient : {LossGradient::any, LossGradient::one})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      Rank rank, other;
      const DividedLoss with = divided_loss(rank, dtype, 0, 11, 11, &alone, gradient),
                        without = divided_loss(other, dtype, 0, 11, 11, nullptr, gradient);
      EXPECT_EQ(with.loss, without.loss);
      EXPECT_EQ(with.token_losses, without.token_losses);
      EXPECT_EQ(with.gradient, without.gradient);
      EXPECT_EQ(with.peak, without.peak);
    }
}

// One collective of two numbers per token; the gradient takes the memory of the logits.
TEST(CrossEntropy, DividedLogitsArePlannedOnMeta) {
  Rank rank(1);
  for (const LossGradient gradient : {LossGradient::any, LossGradient::one}) {
    Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
    MetaGroup group(4, 1, "tensor");
    Tape tape(meta);
    const Var in = tape.input(meta.empty({kTokens, kVocabulary / 4}, DType::bf16));
    const Var loss =
        ops::cross_entropy(tape, ops::scale(tape, in, 2), meta.empty({kTokens}, DType::i32),
                           meta.empty({kTokens}, DType::f32), {kVocabulary / 4, kVocabulary}, &group, gradient)
            .loss;
    tape.backward({{loss, {}}});
    EXPECT_EQ(group.sent(), (std::map<std::string, double>{{"all_gather", 3 * 2 * kTokens * 4}}));
    EXPECT_LT(meta.arena().peak(MemoryTag::activations), 3 * kTokens * kVocabulary / 4 * 2 + 32 * kTokens * 4);
  }
}

TEST(CrossEntropy, ErrorsNameWrongInputs) {
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
  MetaGroup two(2, 1, "tensor"), alone(1, 0, "tensor");
  EXPECT_EQ(message_of<DataError>([&] {
              ops::cross_entropy(tape, logits, rank.tensor<int32_t>({2}, {-1, 0}), weights, {2, 5}, &two);
            }),
            "cross_entropy: target -1 at index 0 is not one of the 5 logits, and its weight is not 0");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::cross_entropy(tape, logits, targets, weights, {3, 5}, &two);
            }),
            "cross_entropy: columns [3, 6) are not within the vocabulary of 5 entries");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::cross_entropy(tape, logits, targets, weights, {0, 5}, &alone);
            }),
            "cross_entropy: the only rank holds 3 of 5 columns");
}

TEST(CrossEntropy, LossIsZeroWithoutTokens) {
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
