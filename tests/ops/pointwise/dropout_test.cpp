#include "support/dropout.h"

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::dropout_of;
using testing::gradcheck;
using testing::Rank;
using testing::values;

TEST(Dropout, GradientsMatchDifferences) {
  Rank rank;
  for (const double p : {0.1, 0.5}) {
    const auto how = dropout_of(rank, p);
    gradcheck(rank, "dropout",
              [&](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::dropout(tape, in[0], how)}; },
              {rank.normal({3, 2, 7}, DType::f64, "x")});
  }
}

TEST(Dropout, BackwardDropsTheSameElements) {
  Rank rank;
  const auto how = dropout_of(rank, 0.5);
  Tape tape(rank.stream);
  const Tensor ones = rank.tensor<float>({300}, std::vector<float>(300, 1.0f));
  const Var x = tape.input(ones), y = ops::dropout(tape, x, how);
  const auto forward = values(y.value());
  tape.backward({{y, ones}});
  EXPECT_EQ(values(tape.gradient(x)), forward);
}

TEST(Dropout, ProbabilityZeroReturnsTheInput) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4}, DType::f32, "x"));
  EXPECT_EQ(ops::dropout(tape, x, {}).value().raw(), x.value().raw());
}

TEST(Dropout, SavesNothing) {
  Rank rank;
  const auto how = dropout_of(rank, 0.5);
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4096}, DType::f32, "x"));
  const int64_t before = rank.stream.arena().live();
  ops::dropout(tape, x, how);
  EXPECT_EQ(rank.stream.arena().live(), before);
}

TEST(Dropout, ErrorsNameWrongArguments) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4}, DType::f32, "x"));
  const auto message = [&](const Var& on, const kernels::Dropout& how) {
    return test::message_of<ShapeError>([&] { ops::dropout(tape, on, how); });
  };
  EXPECT_EQ(message(x, dropout_of(rank, 1)), "dropout: p of dropout must be at least 0 and below 1, got 1");
  EXPECT_EQ(message(x, dropout_of(rank, -0.1)), "dropout: p of dropout must be at least 0 and below 1, got -0.1");
  EXPECT_EQ(message(x, {.p = 0.1}), "dropout: dropout needs step, float64 [6]");
  EXPECT_EQ(message(tape.constant(rank.tensor<int32_t>({1}, {1})), dropout_of(rank, 0.1)),
            "dropout: x must be floating and contiguous, got int32 [1]");
}

}  // namespace
}  // namespace witan
