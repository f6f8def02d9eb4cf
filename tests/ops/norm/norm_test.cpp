#include "witan/ops/norm/norm.h"

#include <functional>

#include "support/gradcheck.h"
#include "support/thread_world.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;

TEST(RmsNorm, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 1}, Shape{2, 3, 70}}) {
    gradcheck(
        rank, "rmsnorm",
        [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::rmsnorm(tape, in[0], in[1], 1e-5)}; },
        {rank.normal(shape, DType::f64, "x"), rank.normal({shape.last()}, DType::f64, "w")});
  }
}

TEST(Norms, AWeightCenteredAtZeroIsMultipliedWithAnAddedOne) {
  Rank rank;
  const Shape shape = {2, 3, 70};
  Tape tape(rank.stream);
  const auto var = [&](const Tensor& x) { return tape.input(x); };
  const Tensor in = rank.normal(shape, DType::f64, "x"), w = rank.normal({70}, DType::f64, "w");
  std::vector<double> one_more = testing::values(w);
  for (double& value : one_more) value += 1;
  const Tensor shifted = rank.tensor<double>({70}, one_more);
  EXPECT_EQ(testing::values(ops::rmsnorm(tape, var(in), var(w), 1e-5, true).value()),
            testing::values(ops::rmsnorm(tape, var(in), var(shifted), 1e-5).value()));
  EXPECT_EQ(testing::values(ops::add_rmsnorm(tape, var(in), var(in), var(w), 1e-5, true).normed.value()),
            testing::values(ops::add_rmsnorm(tape, var(in), var(in), var(shifted), 1e-5).normed.value()));
  EXPECT_EQ(testing::values(ops::layernorm(tape, var(in), var(w), {}, 1e-5, true).value()),
            testing::values(ops::layernorm(tape, var(in), var(shifted), {}, 1e-5).value()));
  gradcheck(
      rank, "rmsnorm",
      [](Tape& on, const std::vector<Var>& at) { return std::vector{ops::rmsnorm(on, at[0], at[1], 1e-5, true)}; },
      {in, w});
  gradcheck(rank, "add_layernorm",
            [](Tape& on, const std::vector<Var>& at) {
              const auto [sum, normed] = ops::add_layernorm(on, at[0], at[0], at[1], {}, 1e-5, true);
              return std::vector{sum, normed};
            },
            {in, w});
}

TEST(Norms, FormTheAddedOneInFloat32) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor x = rank.normal({6, 70}, DType::bf16, "x"), w = rank.normal({70}, DType::bf16, "w");
  const std::vector<double> y = testing::values(ops::rmsnorm(tape, tape.input(x), tape.input(w), 1e-5, true).value());
  const Tensor exact_x = rank.tensor<double>({6, 70}, testing::values(x)),
               exact_w = rank.tensor<double>({70}, testing::values(w));
  const std::vector<double> exact =
      testing::values(ops::rmsnorm(tape, tape.input(exact_x), tape.input(exact_w), 1e-5, true).value());
  constexpr double kHalfUnit = 0x1p-8;  // of bfloat16: one rounding, that of the result
  for (size_t i = 0; i < y.size(); ++i) EXPECT_LE(std::abs(y[i] - exact[i]), 1.001 * kHalfUnit * std::abs(exact[i]));
}

TEST(Norms, WithoutAWeightEqualThoseWithOnes) {
  Rank rank;
  const Shape shape = {2, 3, 70};
  gradcheck(rank, "rmsnorm",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::rmsnorm(tape, in[0], {}, 1e-5)}; },
            {rank.normal(shape, DType::f64, "x")});
  gradcheck(rank, "add_rmsnorm",
            [](Tape& tape, const std::vector<Var>& in) {
              const auto [sum, normed] = ops::add_rmsnorm(tape, in[0], in[1], {}, 1e-5);
              return std::vector{sum, normed};
            },
            {rank.normal(shape, DType::f64, "a"), rank.normal(shape, DType::f64, "b")});
  gradcheck(
      rank, "layernorm",
      [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::layernorm(tape, in[0], {}, {}, 1e-5)}; },
      {rank.normal(shape, DType::f64, "x")});
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal(shape, DType::f32, "x")),
            ones = tape.constant(rank.tensor<float>({70}, std::vector<float>(70, 1)));
  EXPECT_EQ(testing::values(ops::rmsnorm(tape, x, {}, 1e-5).value()),
            testing::values(ops::rmsnorm(tape, x, ones, 1e-5).value()));
}

TEST(AddRmsNorm, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 1}, Shape{2, 3, 70}}) {
    const std::vector<Tensor> inputs = {rank.normal(shape, DType::f64, "a"), rank.normal(shape, DType::f64, "b"),
                                        rank.normal({shape.last()}, DType::f64, "w")};
    gradcheck(
        rank, "add_rmsnorm",
        [](Tape& tape, const std::vector<Var>& in) {
          const auto [sum, normed] = ops::add_rmsnorm(tape, in[0], in[1], in[2], 1e-5);
          return std::vector{sum, normed};
        },
        inputs);
    gradcheck(
        rank, "add_rmsnorm",
        [](Tape& tape, const std::vector<Var>& in) {
          return std::vector{ops::add_rmsnorm(tape, in[0], in[1], in[2], 1e-5).normed};
        },
        inputs);
  }
}

struct SumOps {
  std::function<ops::SumAndNorm(Tape&, const std::vector<Var>& in)> fused;
  std::function<Var(Tape&, const Var& sum, const std::vector<Var>& in)> norm;  // in: a, b, w, bias, c
};

// Values and gradients, if the sum, its norm or both are used, and if the gradient of the sum is shared.
void expect_bits_of_two_ops(const SumOps& ops) {
  Rank rank;
  const Shape shape = {3, 37};
  using Uses = std::vector<std::pair<Var, Tensor>>;
  const auto run = [&](bool fused, bool uses_sum, bool uses_norm, DType dtype) {
    Tape tape(rank.stream);
    std::vector<Var> in;
    for (const char* name : {"a", "b"}) in.push_back(tape.input(rank.normal(shape, dtype, name)));
    for (const char* name : {"w", "bias"}) in.push_back(tape.input(rank.normal({37}, dtype, name)));
    in.push_back(tape.input(rank.normal(shape, dtype, "c")));
    ops::SumAndNorm out;
    if (fused) {
      out = ops.fused(tape, in);
    } else {
      out.sum = ops::add(tape, in[0], in[1]);
      out.normed = ops.norm(tape, out.sum, in);
    }
    const Var later = ops::add(tape, out.sum, in[4]);
    Uses uses;
    if (uses_sum) uses.emplace_back(later, rank.normal(shape, dtype, "dlater"));
    if (uses_norm) uses.emplace_back(out.normed, rank.normal(shape, dtype, "dnormed"));
    tape.backward(uses);
    std::vector<std::vector<double>> all = {testing::values(out.sum.value()), testing::values(out.normed.value())};
    for (const Var& input : in)
      all.push_back(tape.gradient(input).defined() ? testing::values(tape.gradient(input)) : std::vector<double>());
    return all;
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const auto& [uses_sum, uses_norm] : {std::pair{true, true}, {true, false}, {false, true}})
      EXPECT_EQ(run(true, uses_sum, uses_norm, dtype), run(false, uses_sum, uses_norm, dtype)) << dtype;
}

TEST(AddRmsNorm, HasTheBitsOfTheTwoOps) {
  expect_bits_of_two_ops(
      {[](Tape& tape, const std::vector<Var>& in) { return ops::add_rmsnorm(tape, in[0], in[1], in[2], 1e-5); },
       [](Tape& tape, const Var& sum, const std::vector<Var>& in) { return ops::rmsnorm(tape, sum, in[2], 1e-5); }});
}

TEST(AddLayerNorm, HasTheBitsOfTheTwoOps) {
  for (const bool biased : {false, true})
    expect_bits_of_two_ops({[biased](Tape& tape, const std::vector<Var>& in) {
                              return ops::add_layernorm(tape, in[0], in[1], in[2], biased ? in[3] : Var(), 1e-5);
                            },
                            [biased](Tape& tape, const Var& sum, const std::vector<Var>& in) {
                              return ops::layernorm(tape, sum, in[2], biased ? in[3] : Var(), 1e-5);
                            }});
}

TEST(AddLayerNorm, GradientsMatchDifferences) {
  Rank rank;
  const std::vector<Tensor> inputs = {rank.normal({3, 5}, DType::f64, "a"), rank.normal({3, 5}, DType::f64, "b"),
                                      rank.normal({5}, DType::f64, "w"), rank.normal({5}, DType::f64, "bias")};
  gradcheck(
      rank, "add_layernorm",
      [](Tape& tape, const std::vector<Var>& in) {
        const auto [sum, normed] = ops::add_layernorm(tape, in[0], in[1], in[2], in[3], 1e-5);
        return std::vector{sum, normed};
      },
      inputs);
}

// Ranks that hold the same part, and perturb it together, act as one rank that holds it n times.
TEST(ShardedRmsNorm, GradientsMatchDifferences) {
  testing::on_ranks(2, [](testing::ThreadRank& rank) {
    const auto group = rank.everyone("tensor");
    gradcheck(rank, "sharded_rmsnorm",
              [&](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::sharded_rmsnorm(tape, in[0], in[1], 1e-5, *group)};
              },
              {rank.normal({2, 3, 7}, DType::f64, "x"), rank.normal({7}, DType::f64, "w")});
  });
}

// The rank's columns of x [.., n D].
Tensor columns_of(Rank& rank, const Tensor& x, int n, int index) {
  const auto [rows, all] = x.shape().as_rows();
  const int64_t D = all / n;
  std::vector<double> part;
  const auto from = testing::values(x);
  for (int64_t t = 0; t < rows; ++t)
    part.insert(part.end(), from.begin() + t * all + index * D, from.begin() + t * all + (index + 1) * D);
  return rank.tensor<double>(x.shape().with(x.shape().dims() - 1, D), part);
}

TEST(ShardedRmsNorm, MatchesTheNormOfWholeRows) {
  for (const int n : {1, 2, 3})
    testing::on_ranks(n, [&](testing::ThreadRank& rank) {
      const auto group = rank.everyone("tensor");
      const Shape shape{2, 5, 12};
      const Tensor x = rank.normal(shape, DType::f64, "x"), w = rank.normal({12}, DType::f64, "w"),
                   dy = rank.normal(shape, DType::f64, "dy");
      Tape whole(rank.stream), part(rank.stream);
      const Var x1 = whole.input(x), w1 = whole.input(w), y1 = ops::rmsnorm(whole, x1, w1, 1e-3);
      whole.backward({{y1, dy}});
      const auto mine = [&](const Tensor& all) { return columns_of(rank, all, n, rank.rank); };
      const Var x2 = part.input(mine(x)), w2 = part.input(mine(w)),
                y2 = ops::sharded_rmsnorm(part, x2, w2, 1e-3, *group);
      part.backward({{y2, mine(dy)}});
      EXPECT_TRUE(testing::close(y2.value(), mine(y1.value()), 1e-13, 1e-13));
      EXPECT_TRUE(testing::close(part.gradient(x2), mine(whole.gradient(x1)), 1e-13, 1e-13));
      EXPECT_TRUE(testing::close(part.gradient(w2), mine(whole.gradient(w1)), 1e-13, 1e-13));
    });
}

TEST(LayerNorm, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(
      rank, "layernorm",
      [](Tape& tape, const std::vector<Var>& in) {
        return std::vector{ops::layernorm(tape, in[0], in[1], in[2], 1e-5)};
      },
      {rank.normal({3, 5}, DType::f64, "x"), rank.normal({5}, DType::f64, "w"), rank.normal({5}, DType::f64, "b")});
  gradcheck(
      rank, "layernorm",
      [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::layernorm(tape, in[0], in[1], {}, 1e-5)}; },
      {rank.normal({2, 66}, DType::f64, "x"), rank.normal({66}, DType::f64, "w")});
}

TEST(Norm, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 4}, DType::f32, "x"));
  try {
    ops::rmsnorm(tape, x, tape.input(rank.normal({3}, DType::f32, "w")), 1e-5);
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(), "rmsnorm: w must be [D=4], got [3]");
  }
  EXPECT_THROW(ops::layernorm(tape, x, tape.input(rank.normal({4}, DType::f64, "w")), {}, 1e-5), ShapeError);
}

TEST(Norm, AcceptsNoRows) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.stream.empty({0, 4}, DType::f32)), w = tape.input(rank.normal({4}, DType::f32, "w"));
  const Var y = ops::rmsnorm(tape, x, w, 1e-5);
  tape.backward({{y, {}}});
  EXPECT_EQ(testing::values(tape.gradient(w)), std::vector<double>(4, 0.0));
}

}  // namespace
}  // namespace witan
