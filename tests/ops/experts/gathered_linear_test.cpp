#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/routing.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/pointwise/activation.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

using Routed = testing::RoutedRows;

// An expert without tokens, one with most of them, a dropped assignment, and a token all of whose assignments are
// dropped.
const std::vector<int32_t> kIds = {3, 0, 0, 3, -1, 3, 1, 0, -1, -1, 3, 1};
constexpr int64_t kTopk = 2, kExperts = 4, kTokens = 6;

TEST(GatheredLinear, GradientsMatchDifferences) {
  Rank rank;
  const Routed of = testing::routed_rows(rank, kIds, kTopk, kExperts);
  gradcheck(rank, "gathered_linear",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::gathered_linear(tape, in[0], of.rows, of.groups, in[1])};
            },
            {rank.normal({kTokens, 5}, DType::f64, "x"), rank.normal({kExperts, 3, 5}, DType::f64, "w")});
}

TEST(SummedLinear, GradientsMatchDifferences) {
  Rank rank;
  const Routed of = testing::routed_rows(rank, kIds, kTopk, kExperts);
  gradcheck(rank, "summed_linear",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::summed_linear(tape, in[0], of.rows, of.groups, in[1])};
            },
            {rank.normal({of.capacity(), 3}, DType::f64, "in"), rank.normal({kExperts, 5, 3}, DType::f64, "w")});
}

// Results of copied tokens for comparison: the bits are the same, and rows outside the groups are not read.
struct Results {
  std::vector<double> y, dx, dfirst, dsecond, dweight;
  bool operator==(const Results&) const = default;
};

Results experts(Rank& rank, const Routed& of, int64_t tokens, DType dtype, bool in_place) {
  constexpr int64_t kWidth = 20, kHidden = 12;
  const int64_t E = of.groups.experts();
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({tokens, kWidth}, dtype, "x")),
            first = tape.input(rank.normal({E, 2 * kHidden, kWidth}, dtype, "first")),
            second = tape.input(rank.normal({E, kWidth, kHidden}, dtype, "second")),
            weight = tape.input(rank.normal({of.capacity()}, accumulator(dtype), "weight"));
  const Tensor dy = rank.normal({tokens, kWidth}, dtype, "dy");
  if (in_place) {
    const Var hidden = ops::swiglu(tape, ops::gathered_linear(tape, x, of.rows, of.groups, first), weight, &of.groups);
    const Var y = ops::summed_linear(tape, hidden, of.rows, of.groups, second);
    tape.backward({{y, dy}});
    return {values(y.value()), values(tape.gradient(x)), values(tape.gradient(first)), values(tape.gradient(second)),
            values(tape.gradient(weight))};
  }
  const Tensor rows = rank.stream.empty({of.capacity(), kWidth}, dtype);
  kernels::gather_rows(rank.stream, rows, x.value(), of.rows.source, of.rows.topk);
  const Var copies = tape.input(rows);
  const Var hidden = ops::swiglu(tape, ops::grouped_linear(tape, copies, of.groups, first), weight, &of.groups);
  const Var products = ops::grouped_linear(tape, hidden, of.groups, second);
  const Tensor y = rank.stream.empty_like(x.value()), dx = rank.stream.empty_like(y), d = rank.stream.empty_like(rows);
  kernels::sum_assignments(rank.stream, y, products.value(), of.rows.slot);
  kernels::gather_rows(rank.stream, d, dy, of.rows.source, of.rows.topk);
  tape.backward({{products, d}});
  kernels::sum_assignments(rank.stream, dx, tape.gradient(copies), of.rows.slot);
  return {values(y), values(dx), values(tape.gradient(first)), values(tape.gradient(second)),
          values(tape.gradient(weight))};
}

TEST(GatheredLinear, HasTheBitsOfCopiedTokens) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t topk : {1, 2, 8}) {
      SCOPED_TRACE(cat(dtype, ", top ", topk));
      constexpr int64_t kMany = 41, kAll = 9;  // one expert has no tokens
      std::vector<int32_t> ids;
      for (int64_t t = 0; t < kMany; ++t)
        for (int64_t k = 0; k < topk; ++k) ids.push_back(static_cast<int32_t>((t * t + k) % (kAll - 1)));
      const Routed of = testing::routed_rows(rank, ids, topk, kAll);
      const Results in_place = experts(rank, of, kMany, dtype, true);
      EXPECT_EQ(in_place, experts(rank, of, kMany, dtype, false));
    }
}

// Rows after the groups, whose index is negative, are not read and do not reach a sum.
TEST(GatheredLinear, SpareRowsChangeNothing) {
  Rank rank;
  const Routed all = testing::routed_rows(rank, kIds, kTopk, kExperts),
               with_spare = testing::routed_rows(rank, kIds, kTopk, kExperts, 7);
  const auto y_of = [&](const Routed& of) {
    Tape tape(rank.stream, Tape::Mode::off);
    const Var h = ops::gathered_linear(tape, tape.constant(rank.normal({kTokens, 5}, DType::f32, "x")), of.rows,
                                       of.groups, tape.constant(rank.normal({kExperts, 3, 5}, DType::f32, "w")));
    return values(
        ops::summed_linear(tape, h, of.rows, of.groups, tape.constant(rank.normal({kExperts, 5, 3}, DType::f32, "v")))
            .value());
  };
  const std::vector<double> y = y_of(all);
  EXPECT_EQ(y, y_of(with_spare));
  EXPECT_EQ(std::vector<double>(y.begin() + 4 * 5, y.begin() + 5 * 5), std::vector<double>(5, 0.0))
      << "a token that has no expert";
}

TEST(GatheredLinear, AcceptsNoTokens) {
  Rank rank;
  const Routed of = testing::routed_rows(rank, {}, 2, 3);
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const Results none = experts(rank, of, 0, dtype, true);
    EXPECT_TRUE(none.y.empty());
    EXPECT_EQ(none.dfirst, std::vector<double>(none.dfirst.size(), 0.0));
    EXPECT_EQ(none.dsecond, std::vector<double>(none.dsecond.size(), 0.0));
  }
}

TEST(GatheredLinear, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Routed of = testing::routed_rows(rank, kIds, kTopk, kExperts);
  const auto input = [&](const Shape& shape) { return tape.input(rank.normal(shape, DType::f32, "in")); };
  const auto gathered = [&](const Shape& x, const Shape& w) {
    return test::message_of<ShapeError>([&] { ops::gathered_linear(tape, input(x), of.rows, of.groups, input(w)); });
  };
  EXPECT_EQ(gathered({6}, {4, 3, 5}), "gathered_linear: x must be a matrix, got [6]");
  EXPECT_EQ(gathered({6, 5}, {4, 3, 4}), "gathered_linear: w must be [E, N, 5], got [4, 3, 4]");
  EXPECT_EQ(gathered({6, 5}, {5, 3, 5}),
            "gathered_linear: groups.begin and groups.count must be int64 [E=5], got int64 [4]");
  EXPECT_EQ(gathered({7, 5}, {4, 3, 5}), "gathered_linear: x must be [T=6, D], got [7, 5]");
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              ops::gathered_linear(tape, input({6, 5}), {of.rows.source, {}, 2}, of.groups, input({4, 3, 5}));
            }),
            "gathered_linear: rows.source and rows.slot must be int64 and have one dim");
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              ops::gathered_linear(tape, input({6, 5}), {of.rows.source, of.rows.slot, 5}, of.groups, input({4, 3, 5}));
            }),
            "gathered_linear: rows.slot must be [T K], K=5, got [12]");
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              ops::summed_linear(tape, input({8, 3}), of.rows, of.groups, input({4, 5, 3}));
            }),
            "summed_linear: in must be [capacity=9, F], got [8, 3]");
}

}  // namespace
}  // namespace witan
