#include "witan/convert/input_moments.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/rank.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/linear/linear.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

std::unique_ptr<Parameter> parameter(Rank& rank, const char* name, const Shape& shape, Tensor place = {}) {
  const ParameterSpec spec{.name = name, .shape = shape, .dtype = DType::bf16};
  return std::make_unique<Parameter>(rank.stream, spec, spec.whole(), 7, nullptr, std::move(place));
}

// x xᵀ over these rows of x [T, K].
void expect_moments(std::span<const float> found, const Tensor& x, const std::vector<int64_t>& rows) {
  const std::vector<double> all = values(x);
  const auto K = static_cast<size_t>(x.size(1));
  ASSERT_EQ(found.size(), K * K);
  for (size_t i = 0; i < K; ++i)
    for (size_t j = 0; j < K; ++j) {
      double sum = 0;
      for (const int64_t row : rows)
        sum += all[static_cast<size_t>(row) * K + i] * all[static_cast<size_t>(row) * K + j];
      ASSERT_NEAR(found[i * K + j], sum, 1e-4 * static_cast<double>(rows.size())) << i << ", " << j;
    }
}

std::vector<int64_t> numbers(int64_t count) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

TEST(InputMoments, AreSummedOverTheProductsOfAMatrix) {
  Rank rank;
  const auto w = parameter(rank, "w_proj.weight", {5, 12}), other = parameter(rank, "head.weight", {5, 12});
  InputMoments moments({w.get()}, rank.pool);
  EXPECT_TRUE(moments.collects("w_proj.weight"));
  EXPECT_FALSE(moments.collects("head.weight"));
  EXPECT_TRUE(moments.of("w_proj.weight", 0).empty());
  const Tensor x = rank.normal({1500, 12}, DType::bf16, "x");
  rank.stream.observe(&moments);
  Tape tape(rank.stream, Tape::Mode::off);
  for (const Parameter* weight : {w.get(), other.get()})
    for (const auto& [first, count] : {std::pair{0, 1100}, std::pair{1100, 400}})
      ops::linear(tape, tape.constant(x.narrow(0, first, count)), tape.constant(weight->value()), {});
  rank.stream.observe(nullptr);
  expect_moments(moments.of("w_proj.weight", 0), x, numbers(1500));
  EXPECT_TRUE(moments.of("head.weight", 0).empty());
}

TEST(InputMoments, MatricesOfOneProductShareThem) {
  Rank rank;
  const Tensor place = rank.stream.empty({9, 12}, DType::bf16);
  const auto q = parameter(rank, "q_proj.weight", {4, 12}, place.narrow(0, 0, 4)),
             k = parameter(rank, "k_proj.weight", {5, 12}, place.narrow(0, 4, 5));
  InputMoments moments({q.get(), k.get()}, rank.pool);
  const Tensor x = rank.normal({30, 12}, DType::bf16, "x");
  rank.stream.observe(&moments);
  Tape tape(rank.stream, Tape::Mode::off);
  ops::joined_linear(tape, tape.constant(x), {tape.constant(q->value()), tape.constant(k->value())});
  rank.stream.observe(nullptr);
  expect_moments(moments.of("k_proj.weight", 0), x, numbers(30));
  EXPECT_EQ(moments.of("q_proj.weight", 0).data(), moments.of("k_proj.weight", 0).data());
}

// Rows of a receive buffer, and rows gathered from tokens. An expert without rows has no moments.
TEST(InputMoments, ExpertsUseOnlyTheirRows) {
  Rank rank;
  const auto w = parameter(rank, "experts.up_proj", {3, 8, 16});
  const RowGroups groups{rank.tensor<int64_t>({3}, {6, 0, 1}), rank.tensor<int64_t>({3}, {4, 0, 3})};
  for (const bool gathers : {false, true}) {
    SCOPED_TRACE(gathers);
    InputMoments moments({w.get()}, rank.pool);
    const Tensor x = rank.normal({gathers ? 5 : 10, 16}, DType::bf16, "x");
    rank.stream.observe(&moments);
    Tape tape(rank.stream, Tape::Mode::off);
    const Var in = tape.constant(x), stack = tape.constant(w->value());
    if (gathers) {
      const Tensor source = rank.tensor<int64_t>({10}, {0, 2, 4, 6, 0, 0, 9, 8, 3, 1});
      ops::gathered_linear(tape, in, {source, rank.tensor<int64_t>({10}, std::vector<int64_t>(10, -1)), 2}, groups,
                           stack);
    } else {
      ops::grouped_linear(tape, in, groups, stack);
    }
    rank.stream.observe(nullptr);
    expect_moments(moments.of("experts.up_proj", 0), x,
                   gathers ? std::vector<int64_t>{4, 4, 1, 0} : std::vector<int64_t>{6, 7, 8, 9});
    EXPECT_TRUE(moments.of("experts.up_proj", 1).empty());
    expect_moments(moments.of("experts.up_proj", 2), x, {1, 2, 3});
  }
}

}  // namespace
}  // namespace witan
