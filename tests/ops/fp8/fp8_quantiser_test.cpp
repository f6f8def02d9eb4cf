// 8-bit products with every recipe and format, compared with operands rounded in float64.
#include "witan/ops/fp8/fp8_quantiser.h"

#include <gtest/gtest.h>

#include <functional>

#include "support/fp8.h"
#include "support/rank.h"
#include "witan/ops/fp8/fp8_products.h"

namespace witan {
namespace {

using kernels::Fp8Format;
using ops::Fp8Operand;
using ops::Fp8Quantiser;
using ops::Fp8Recipe;
using testing::ExactSum;
using testing::Rank;
using testing::values;
using Scales = Fp8Recipe::Scales;

constexpr int64_t kRows = 150, kIn = 272, kOut = 144;

using Matrix = std::vector<double>;

float amax_of(const Matrix& numbers) {
  double most = 0;
  for (const double number : numbers) most = std::max(most, std::abs(number));
  return static_cast<float>(most);
}

// Rounds a matrix of `columns` columns with the scales of its blocks of `down` rows by `across` columns.
Matrix in_blocks(const Matrix& numbers, int64_t columns, int64_t down, int64_t across, Fp8Format format) {
  const int64_t rows = std::ssize(numbers) / columns, wide = (columns + across - 1) / across;
  std::vector<float> most(static_cast<size_t>((rows + down - 1) / down * wide));
  const auto block = [&](size_t i) {
    const auto at = static_cast<int64_t>(i);
    return static_cast<size_t>(at / columns / down * wide + at % columns / across);
  };
  for (size_t i = 0; i < numbers.size(); ++i)
    most[block(i)] = std::max(most[block(i)], static_cast<float>(std::abs(numbers[i])));
  Matrix out;
  for (size_t i = 0; i < numbers.size(); ++i) out.push_back(testing::scaled_to(format, numbers[i], most[block(i)]));
  return out;
}

Matrix by(const Matrix& numbers, float magnitude, Fp8Format format) {
  Matrix out;
  for (const double number : numbers) out.push_back(testing::scaled_to(format, number, magnitude));
  return out;
}

struct Problem {
  explicit Problem(Rank& rank)
      : x(rank.normal({kRows, kIn}, DType::f32, "x")),
        w(rank.normal({kOut, kIn}, DType::f32, "w", 0.02)),
        dy(rank.normal({kRows, kOut}, DType::f32, "dy", 1e-5)) {
    // Outliers make the recipes differ, and leave numbers beside them that only e5m2 can represent.
    x.data<float>()[7] = 300;
    dy.data<float>()[11] = 0.5F;
  }
  Tensor x, w, dy;
};

struct Results {
  Tensor y, dx, dw;
};

Results run(Rank& rank, const Problem& p, const std::shared_ptr<const Fp8Quantiser>& quantiser) {
  Tape tape(rank.stream);
  const Var x = tape.input(p.x), w = tape.input(p.w), y = ops::fp8_linear(tape, x, w, quantiser);
  const Tensor result = y.value();
  tape.backward({{y, p.dy}});
  return {result, tape.gradient(x), tape.gradient(w)};
}

// c[i,j] = sum_k a(i,k) b(j,k), within the error of float32 sums.
void expect_product(const Tensor& c, int64_t inner, const std::function<double(int64_t, int64_t)>& a,
                    const std::function<double(int64_t, int64_t)>& b) {
  for (int64_t i = 0; i < c.size(0); ++i)
    for (int64_t j = 0; j < c.size(1); ++j) {
      ExactSum sum;
      for (int64_t k = 0; k < inner; ++k) sum.add(a(i, k) * b(j, k));
      ASSERT_NEAR(c.data<float>()[i * c.size(1) + j], sum.sum, sum.magnitudes * 0x1p-18) << i << ", " << j;
    }
}

// The operands of each product: x by rows and by columns, w, dy by rows and by columns.
struct Operands {
  Matrix x, x_columns, w, dy, dy_columns;
};

void expect_products(const Results& found, const Operands& of) {
  const auto at = [](const Matrix& m, int64_t columns, bool turned) {
    return [&m, columns, turned](int64_t i, int64_t k) {
      return m[static_cast<size_t>(turned ? k * columns + i : i * columns + k)];
    };
  };
  expect_product(found.y, kIn, at(of.x, kIn, false), at(of.w, kIn, false));
  expect_product(found.dx, kOut, at(of.dy, kOut, false), at(of.w, kIn, true));
  expect_product(found.dw, kRows, at(of.dy_columns, kOut, true), at(of.x_columns, kIn, true));
}

class Fp8Recipes : public ::testing::TestWithParam<Fp8Format> {};

TEST_P(Fp8Recipes, BlockwiseScalesBlocks) {
  Rank rank;
  const Problem p(rank);
  constexpr auto e4m3 = Fp8Format::e4m3;
  const Matrix x = values(p.x), w = values(p.w), dy = values(p.dy);
  expect_products(run(rank, p, std::make_shared<const Fp8Quantiser>(Fp8Recipe{Scales::blockwise, GetParam()})),
                  {in_blocks(x, kIn, 1, 128, e4m3), in_blocks(x, kIn, 128, 1, e4m3), in_blocks(w, kIn, 128, 128, e4m3),
                   in_blocks(dy, kOut, 1, 128, GetParam()), in_blocks(dy, kOut, 128, 1, GetParam())});
}

TEST_P(Fp8Recipes, TensorwiseScalesTensors) {
  Rank rank;
  const Problem p(rank);
  const Matrix x = by(values(p.x), amax_of(values(p.x)), Fp8Format::e4m3),
               w = by(values(p.w), amax_of(values(p.w)), Fp8Format::e4m3),
               dy = by(values(p.dy), amax_of(values(p.dy)), GetParam());
  expect_products(run(rank, p, std::make_shared<const Fp8Quantiser>(Fp8Recipe{Scales::tensorwise, GetParam()})),
                  {x, x, w, dy, dy});
}

// An input without a history is scaled by itself, a weight that has grown saturates, and a gradient has headroom.
TEST_P(Fp8Recipes, DelayedScalesByEarlierSteps) {
  Rank rank;
  const Problem p(rank);
  const float of_x = amax_of(values(p.x)), of_w = amax_of(values(p.w)), of_dy = amax_of(values(p.dy));
  const Tensor references = rank.tensor<float>({3, 1}, {0, of_w / 2, 2 * of_dy}),
               seen = rank.tensor<float>({3, 1}, {1e6F, 0, 0});
  const auto quantiser = std::make_shared<const Fp8Quantiser>(Fp8Recipe{Scales::delayed, GetParam()}, nullptr,
                                                              ops::Fp8Magnitudes{references, [&] { return seen; }});
  const Matrix x = by(values(p.x), of_x, Fp8Format::e4m3), w = by(values(p.w), of_w / 2, Fp8Format::e4m3),
               dy = by(values(p.dy), 2 * of_dy, GetParam());
  EXPECT_FLOAT_EQ(amax_of(w), of_w / 2);
  expect_products(run(rank, p, quantiser), {x, x, w, dy, dy});
  EXPECT_EQ(values(seen), (std::vector<double>{1e6, of_w, of_dy}));
  EXPECT_EQ(values(references), (std::vector<double>{0, of_w / 2, 2 * of_dy}));
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp8Recipes, ::testing::Values(Fp8Format::e4m3, Fp8Format::e5m2),
                         [](const auto& of) { return of.param == Fp8Format::e4m3 ? "e4m3" : "hybrid"; });

// Only a training step's first forward counts: not an evaluation, nor a second use of a weight.
TEST(Fp8Quantiser, RecordsOnlyTrainingSteps) {
  Rank rank;
  const Problem p(rank);
  const Tensor references = rank.stream.zeros({3, 1}, DType::f32), seen = rank.stream.zeros({3, 1}, DType::f32);
  const auto quantiser = std::make_shared<const Fp8Quantiser>(Fp8Recipe{Scales::delayed}, nullptr,
                                                              ops::Fp8Magnitudes{references, [&] { return seen; }});
  Tape tape(rank.stream, Tape::Mode::off);
  ops::fp8_linear(tape, tape.constant(p.x), tape.constant(p.w), quantiser);
  EXPECT_EQ(values(seen), (std::vector<double>{0, 0, 0}));
}

// The rows that one rank sent to an expert have a scale of their own, and so has each matrix: no rank's rows depend on
// the other ranks that share the pool.
TEST(Fp8Quantiser, ScalesExpertsRowsBySourceRank) {
  const testing::Fp8Case c{600, 256, 256, {0, 300, 150, 400, 280, 600}, {150, 100, 130, 1, 20, 0}, 3};
  Rank rank;
  const RowGroups groups = testing::fp8_groups(rank, c);
  const Tensor rows = testing::fp8_rows_of(rank, c, c.K, DType::bf16, "rows"),
               w = rank.normal({c.experts(), c.N, c.K}, DType::bf16, "w");
  const auto quantiser = std::make_shared<const Fp8Quantiser>(Fp8Recipe{Scales::tensorwise});
  Tape tape(rank.stream, Tape::Mode::off);
  const Tensor all = ops::fp8_grouped_linear(tape, tape.constant(rows), groups, tape.constant(w), quantiser).value();
  for (size_t g = 0; g < c.begin.size(); ++g) {
    if (c.count[g] == 0) continue;
    const int64_t e = static_cast<int64_t>(g) % c.experts();
    const Var x = tape.constant(rows.narrow(0, c.begin[g], c.count[g])),
              matrix = tape.constant(w.narrow(0, e, 1).reshape({c.N, c.K}));
    EXPECT_EQ(values(all.narrow(0, c.begin[g], c.count[g])),
              values(ops::fp8_linear(tape, x, matrix, quantiser).value()))
        << g;
  }
}

}  // namespace
}  // namespace witan
