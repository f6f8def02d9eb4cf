#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/routing.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/pointwise/activation.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::routed_rows;
using testing::RoutedRows;
using testing::values;

constexpr int64_t kExperts = 4, kTopk = 2, kTokens = 6;
// An expert without tokens, one with most of them, a dropped assignment, and a token all of whose assignments are
// dropped.
const std::vector<int32_t> kIds = {3, 0, 0, 3, -1, 3, 1, 0, -1, -1, 3, 1};

// Rows in groups that are out of order and of which one is empty, or rows gathered from tokens; weighted or not; with
// activations that are kept or recomputed.
TEST(SwigluExperts, GradientsMatchDifferences) {
  Rank rank;
  const RowGroups groups{rank.tensor<int64_t>({4}, {4, 0, 0, 3}), rank.tensor<int64_t>({4}, {2, 3, 0, 1})};
  const RoutedRows of = routed_rows(rank, kIds, kTopk, kExperts);
  const Tensor first = rank.normal({4, 6, 5}, DType::f64, "first"),
               second = rank.normal({4, 5, 3}, DType::f64, "second");
  for (const bool gathers : {false, true})
    for (const bool weighted : {false, true})
      for (const bool again : {false, true}) {
        SCOPED_TRACE(cat(gathers ? "gathered, " : "", weighted ? "weighted, " : "", again ? "rematerialised" : ""));
        std::vector<Tensor> inputs = {rank.normal({6, 5}, DType::f64, "rows"), first, second};
        if (weighted) inputs.push_back(rank.normal({gathers ? of.capacity() : 6}, DType::f64, "row weight"));
        gradcheck(
            rank, "swiglu_experts",
            [&](Tape& tape, const std::vector<Var>& in) {
              const ops::SwigluExperts experts{in[1], in[2], again};
              const Var weight = weighted ? in[3] : Var();
              return std::vector{gathers ? ops::swiglu_experts(tape, in[0], of.rows, of.groups, weight, experts)
                                         : ops::swiglu_experts(tape, in[0], groups, weight, experts)};
            },
            inputs);
      }
}

// The inputs whose gradients are wanted.
struct Wanted {
  bool rows = true, first = true, second = true, weight = true;
};

struct Way {
  bool gathers, weighted, together, again;
};

// y and the wanted gradients.
std::vector<std::vector<double>> run(Rank& rank, DType dtype, const Way& way, const Wanted& wanted) {
  constexpr int64_t kWidth = 20, kHidden = 12, kSpare = 3;
  const RoutedRows of = routed_rows(rank, kIds, kTopk, kExperts, kSpare);
  const int64_t read = way.gathers ? kTokens : of.capacity();
  Tape tape(rank.stream);
  const auto var = [&](const Shape& shape, DType of_type, const char* name, bool trained) {
    const Tensor value = rank.normal(shape, of_type, name);
    return trained ? tape.input(value) : tape.constant(value);
  };
  const Var x = var({read, kWidth}, dtype, "x", wanted.rows),
            first = var({kExperts, 2 * kHidden, kWidth}, dtype, "first", wanted.first),
            second = var({kExperts, kWidth, kHidden}, dtype, "second", wanted.second),
            weight = way.weighted ? var({of.capacity()}, accumulator(dtype), "weight", wanted.weight) : Var();
  const ops::SwigluExperts experts{first, second, way.again};
  Var y;
  if (way.together) {
    y = way.gathers ? ops::swiglu_experts(tape, x, of.rows, of.groups, weight, experts)
                    : ops::swiglu_experts(tape, x, of.groups, weight, experts);
  } else {
    const Var h = way.gathers ? ops::gathered_linear(tape, x, of.rows, of.groups, first)
                              : ops::grouped_linear(tape, x, of.groups, first);
    const Var hidden = ops::swiglu(tape, h, weight, &of.groups);
    y = way.gathers ? ops::summed_linear(tape, hidden, of.rows, of.groups, second)
                    : ops::grouped_linear(tape, hidden, of.groups, second);
  }
  tape.backward({{y, rank.normal({read, kWidth}, dtype, "dy")}});
  // Rows outside the groups are undefined.
  const int64_t rows = way.gathers ? kTokens : of.capacity() - kSpare;
  std::vector<std::vector<double>> out{values(y.value().narrow(0, 0, rows))};
  if (wanted.rows) out.push_back(values(tape.gradient(x).narrow(0, 0, rows)));
  if (wanted.first) out.push_back(values(tape.gradient(first)));
  if (wanted.second) out.push_back(values(tape.gradient(second)));
  if (way.weighted && wanted.weight) out.push_back(values(tape.gradient(weight).narrow(0, 0, of.capacity() - kSpare)));
  return out;
}

TEST(SwigluExperts, HaveTheBitsOfTheirOps) {
  Rank rank(3);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const bool gathers : {false, true})
      for (const bool weighted : {false, true})
        for (const bool again : {false, true}) {
          SCOPED_TRACE(cat(dtype, gathers ? ", gathered" : "", weighted ? ", weighted" : "", again ? ", again" : ""));
          EXPECT_EQ(run(rank, dtype, {gathers, weighted, true, again}, {}),
                    run(rank, dtype, {gathers, weighted, false, false}, {}));
        }
}

TEST(SwigluExperts, ComputeOnlyTheWantedGradients) {
  Rank rank;
  for (const bool gathers : {false, true})
    for (const bool weighted : {false, true})
      for (int which = 1; which < (weighted ? 16 : 8); ++which) {
        SCOPED_TRACE(cat(gathers ? "gathered, " : "", weighted ? "weighted, " : "", which));
        const Wanted wanted{(which & 1) != 0, (which & 2) != 0, (which & 4) != 0, (which & 8) != 0};
        EXPECT_EQ(run(rank, DType::f32, {gathers, weighted, true, which % 2 == 0}, wanted),
                  run(rank, DType::f32, {gathers, weighted, false, false}, wanted));
      }
}

TEST(SwigluExperts, AcceptNoTokens) {
  Rank rank;
  const RoutedRows of = routed_rows(rank, {}, 2, 3);
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({0, 5}, DType::f32, "x")),
            first = tape.input(rank.normal({3, 6, 5}, DType::f32, "f")),
            second = tape.input(rank.normal({3, 5, 3}, DType::f32, "s"));
  const Var y = ops::swiglu_experts(tape, x, of.rows, of.groups, {}, {first, second});
  tape.backward({{y, rank.normal({0, 5}, DType::f32, "dy")}});
  EXPECT_EQ(y.shape(), Shape({0, 5}));
  EXPECT_EQ(values(tape.gradient(first)), std::vector<double>(90, 0.0));
  EXPECT_EQ(values(tape.gradient(second)), std::vector<double>(45, 0.0));
}

// The most memory that a pass takes besides its weights and their gradients: none for a gradient of activations, and
// activations only if they are kept. Planned for either device.
TEST(SwigluExperts, NeedNoMemoryForTheGradientOfActivations) {
  constexpr int64_t kRows = 4096, kWidth = 8, kHidden = 256, kUnit = kRows * kHidden * 2;
  ThreadPool pool(1);
  for (const Device device : {Device{Device::Kind::meta}, Device{Device::Kind::meta, 0, Device::Kind::cuda}}) {
    const auto most = [&](bool together) {
      const std::shared_ptr<Arena> arena = Arena::meta();
      Stream meta(device, arena, pool);
      const auto empty = [&](const Shape& shape) { return meta.empty(shape, DType::bf16); };
      const RowGroups groups{meta.empty({2}, DType::i64), meta.empty({2}, DType::i64)};
      Tape tape(meta);
      const Var x = tape.input(empty({kRows, kWidth})), first = tape.input(empty({2, 2 * kHidden, kWidth})),
                second = tape.input(empty({2, kWidth, kHidden}));
      Var y = together ? ops::swiglu_experts(tape, x, groups, {}, {first, second})
                       : ops::grouped_linear(
                             tape, ops::swiglu(tape, ops::grouped_linear(tape, x, groups, first), {}, &groups), groups,
                             second);
      const Tensor dy = empty({kRows, kWidth});
      tape.backward({{y, dy}});
      return arena->peak(MemoryTag::activations);
    };
    EXPECT_LT(most(true), 9 * kUnit / 2) << "h and its gradient, of 2 units each";
    EXPECT_GE(most(false), 5 * kUnit) << "and that of the activations";
  }
}

TEST(SwigluExperts, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const RoutedRows of = routed_rows(rank, kIds, kTopk, kExperts);
  const auto message = [&](const Shape& first, const Shape& second, const Shape& weight, DType dtype = DType::f32) {
    return test::message_of<ShapeError>([&] {
      ops::swiglu_experts(
          tape, tape.input(rank.normal({6, 5}, DType::f32, "x")), of.rows, of.groups,
          tape.input(rank.normal(weight, DType::f32, "weight")),
          {tape.input(rank.normal(first, DType::f32, "first")), tape.input(rank.normal(second, dtype, "second"))});
    });
  };
  EXPECT_EQ(message({4, 7, 5}, {4, 5, 3}, {9}),
            "swiglu_experts: first holds [gate | up] and must be [E, 2F, D], got [4, 7, 5]");
  EXPECT_EQ(message({4, 6, 5}, {4, 5, 4}, {9}), "swiglu_experts: second must be [E=4, D, F=3], got [4, 5, 4]");
  EXPECT_EQ(message({4, 6, 5}, {4, 5, 3}, {9}, DType::f64), "swiglu_experts: second is float64 but first is float32");
  EXPECT_EQ(message({4, 6, 5}, {4, 5, 3}, {8}),
            "swiglu_experts: row_weight must be [capacity=9] float32, got float32 [8]");
  EXPECT_EQ(message({4, 6, 4}, {4, 5, 3}, {9}), "gathered_linear: w must be [E, N, 5], got [4, 6, 4]");
}

}  // namespace
}  // namespace witan
