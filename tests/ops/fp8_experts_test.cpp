#include "witan/ops/fp8_experts.h"

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/ops/activation.h"
#include "witan/ops/fp8_linear.h"

namespace witan {
namespace {

using test::message_of;
using testing::close;
using testing::Rank;
using testing::values;

struct Problem {
  Problem(Rank& rank, DType dtype, int64_t F)
      : rows(rank.normal({300, 144}, dtype, "rows")),
        first(rank.normal({4, 2 * F, 144}, dtype, "first", 0.1)),
        second(rank.normal({4, 144, F}, dtype, "second", 0.1)),
        weight(rank.normal({300}, DType::f32, "weight")),
        dy(rank.normal({300, 144}, dtype, "dy")),
        groups{rank.tensor<int64_t>({4}, {170, 0, 0, 169}), rank.tensor<int64_t>({4}, {130, 169, 0, 1})} {}
  Tensor rows, first, second, weight, dy;
  RowGroups groups;
};

// Of which inputs gradients are wanted.
struct Wanted {
  bool rows = true, first = true, second = true, weight = true;
};

enum class Way : uint8_t { apart, together, rematerialised, kept };

// y and the gradients that are wanted; of rows, first, second, weight.
std::vector<Tensor> run(Rank& rank, const Problem& p, Way way, const Wanted& wanted, bool weighted) {
  Tape tape(rank.stream);
  const auto var = [&](const Tensor& of, bool trained) { return trained ? tape.input(of) : tape.constant(of); };
  const Var rows = var(p.rows, wanted.rows), first = var(p.first, wanted.first), second = var(p.second, wanted.second),
            weight = weighted ? var(p.weight, wanted.weight) : Var();
  const auto rounds = std::make_shared<ops::Fp8Rounds>();
  const ops::Fp8Rounds::Round round(rounds.get());
  ops::Fp8Experts experts{first, second, nullptr, nullptr, way == Way::rematerialised};
  if (way == Way::kept) {
    experts.first_kept = std::make_shared<ops::Fp8KeptWeight>(rank.stream, p.first.shape(), rounds);
    experts.second_kept = std::make_shared<ops::Fp8KeptWeight>(rank.stream, p.second.shape(), rounds);
  }
  const Var y =
      way == Way::apart
          ? ops::fp8_grouped_linear(
                tape, ops::swiglu(tape, ops::fp8_grouped_linear(tape, rows, p.groups, first), weight, &p.groups),
                p.groups, second)
          : ops::fp8_experts(tape, rows, p.groups, weight, experts);
  std::vector<Tensor> out = {y.value()};
  tape.backward({{y, p.dy}});
  if (wanted.rows) out.push_back(tape.gradient(rows));
  if (wanted.first) out.push_back(tape.gradient(first));
  if (wanted.second) out.push_back(tape.gradient(second));
  if (weighted && wanted.weight) out.push_back(tape.gradient(weight));
  return out;
}

void expect_bits_of_apart(DType dtype, int64_t F, Way way, const Wanted& wanted, bool weighted) {
  Rank rank(3);
  const Problem p(rank, dtype, F);
  const std::vector<Tensor> want = run(rank, p, Way::apart, wanted, weighted),
                            got = run(rank, p, way, wanted, weighted);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i].shape() == p.weight.shape())
      EXPECT_TRUE(close(got[i], want[i], 1e-4, 1e-4));
    else
      EXPECT_EQ(values(got[i]), values(want[i])) << i;
  }
}

// Whole blocks of 128 hidden units and others.
TEST(Fp8Experts, AreTheirOpsToTheBit) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t F : {128, 80})
      for (const Way way : {Way::together, Way::rematerialised, Way::kept}) {
        SCOPED_TRACE(cat(dtype, ", F ", F, ", way ", static_cast<int>(way)));
        expect_bits_of_apart(dtype, F, way, {}, true);
      }
}

// Every set of gradients that may be wanted, with row weights and without.
TEST(Fp8Experts, GiveTheGradientsThatAreWanted) {
  for (const bool weighted : {true, false})
    for (int which = 1; which < (weighted ? 16 : 8); ++which) {
      SCOPED_TRACE(cat(weighted ? "weighted, " : "", which));
      const Wanted wanted{(which & 1) != 0, (which & 2) != 0, (which & 4) != 0, (which & 8) != 0};
      expect_bits_of_apart(DType::bf16, 80, which % 2 == 0 ? Way::together : Way::rematerialised, wanted, weighted);
    }
}

// Of a round on, weights are what they were when they were first used; in the next one they are looked at again.
TEST(Fp8Experts, KeptWeightsAreThoseOfTheirRound) {
  Rank rank;
  const auto rounds = std::make_shared<ops::Fp8Rounds>();
  const Tensor x = rank.normal({20, 32}, DType::bf16, "x"), w = rank.normal({48, 32}, DType::bf16, "w");
  const auto kept = std::make_shared<ops::Fp8KeptWeight>(rank.stream, w.shape(), rounds);
  const auto product = [&] {
    Tape tape(rank.stream, Tape::Mode::off);
    return values(ops::fp8_linear(tape, tape.constant(x), tape.constant(w), kept).value());
  };
  const auto before = product();
  const auto change = [&] {
    for (bf16& value : w.span<bf16>()) value = bf16(float(value) * 2);
  };
  {
    const ops::Fp8Rounds::Round round(rounds.get());
    EXPECT_EQ(product(), before);
    change();
    EXPECT_EQ(product(), before);
  }
  const auto after = product();
  EXPECT_NE(after, before);
  const ops::Fp8Rounds::Round round(rounds.get());
  EXPECT_EQ(product(), after);
}

TEST(Fp8Experts, WrongShapesAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const RowGroups groups{rank.tensor<int64_t>({1}, {0}), rank.tensor<int64_t>({1}, {4})};
  const auto refused = [&](const Shape& first, const Shape& second, int64_t weights = 4) {
    const auto var = [&](const Shape& shape) { return tape.input(rank.normal(shape, DType::f32, "v")); };
    return message_of<ShapeError>([&] {
      ops::fp8_experts(tape, var({4, 32}), groups, var({weights}), {var(first), var(second)});
    });
  };
  EXPECT_EQ(refused({1, 64, 48}, {1, 32, 32}), "fp8_experts: w must be [E, N, K=32], got [1, 64, 48]");
  EXPECT_EQ(refused({1, 64, 32}, {1, 32, 48}), "fp8_experts: w must be [E, N, K=32], got [1, 32, 48]");
  EXPECT_EQ(refused({1, 64, 32}, {2, 32, 32}), "fp8_experts: 1 first matrices and 2 second ones");
  EXPECT_EQ(refused({1, 64, 32}, {1, 32, 32}, 5),
            "fp8_experts: row_weight must be [capacity=4] float32, got float32 [5]");
}

}  // namespace
}  // namespace witan
