#include "support/message_of.h"
#include "support/rank.h"
#include "witan/autograd/recompute.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/ops/fp8/fp8_products.h"
#include "witan/ops/pointwise/activation.h"
#include "witan/ops/pointwise/elementwise.h"

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

// The inputs whose gradients are wanted.
struct Wanted {
  bool rows = true, first = true, second = true, weight = true;
};

enum class Way : uint8_t { apart, together, rematerialised, kept };

// y and the wanted gradients, in the order rows, first, second, weight.
std::vector<Tensor> run(Rank& rank, const Problem& p, Way way, const Wanted& wanted, bool weighted,
                        const ops::Fp8Recipe& recipe) {
  Tape tape(rank.stream);
  const auto var = [&](const Tensor& of, bool trained) { return trained ? tape.input(of) : tape.constant(of); };
  const Var rows = var(p.rows, wanted.rows), first = var(p.first, wanted.first), second = var(p.second, wanted.second),
            weight = weighted ? var(p.weight, wanted.weight) : Var();
  const auto rounds = std::make_shared<ops::Fp8Rounds>();
  const ops::Fp8Rounds::Round round(rounds.get());
  ops::Fp8Experts experts{first, second, nullptr, nullptr, way == Way::rematerialised};
  const auto quantiser = [&](const Shape& of) {
    auto kept = way == Way::kept ? std::make_unique<ops::Fp8KeptWeight>(rank.stream, of, rounds) : nullptr;
    return std::make_shared<const ops::Fp8Quantiser>(recipe, std::move(kept));
  };
  experts.of_first = quantiser(p.first.shape()), experts.of_second = quantiser(p.second.shape());
  const Var y = way == Way::apart
                    ? ops::fp8_grouped_linear(
                          tape,
                          ops::swiglu(tape, ops::fp8_grouped_linear(tape, rows, p.groups, first, experts.of_first),
                                      weight, &p.groups),
                          p.groups, second, experts.of_second)
                    : ops::fp8_experts(tape, rows, p.groups, weight, experts);
  std::vector<Tensor> out = {y.value()};
  tape.backward({{y, p.dy}});
  if (wanted.rows) out.push_back(tape.gradient(rows));
  if (wanted.first) out.push_back(tape.gradient(first));
  if (wanted.second) out.push_back(tape.gradient(second));
  if (weighted && wanted.weight) out.push_back(tape.gradient(weight));
  return out;
}

void expect_bits_of_apart(DType dtype, int64_t F, Way way, const Wanted& wanted, bool weighted,
                          const ops::Fp8Recipe& recipe = {}) {
  Rank rank(3);
  const Problem p(rank, dtype, F);
  const std::vector<Tensor> want = run(rank, p, Way::apart, wanted, weighted, recipe),
                            got = run(rank, p, way, wanted, weighted, recipe);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i].shape() == p.weight.shape())
      EXPECT_TRUE(close(got[i], want[i], 1e-4, 1e-4));
    else
      EXPECT_EQ(values(got[i]), values(want[i])) << i;
  }
}

// Whole blocks of 128 hidden units, and partial ones.
TEST(Fp8Experts, HaveTheBitsOfTheirOps) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t F : {128, 80})
      for (const Way way : {Way::together, Way::rematerialised, Way::kept}) {
        SCOPED_TRACE(cat(dtype, ", F ", F, ", way ", static_cast<int>(way)));
        expect_bits_of_apart(dtype, F, way, {}, true);
        expect_bits_of_apart(dtype, F, way, {}, true, {ops::Fp8Recipe::Scales::tensorwise, kernels::Fp8Format::e5m2});
      }
}

// Every set of wanted gradients, with row weights and without.
TEST(Fp8Experts, ComputeOnlyTheWantedGradients) {
  for (const bool weighted : {true, false})
    for (int which = 1; which < (weighted ? 16 : 8); ++which) {
      SCOPED_TRACE(cat(weighted ? "weighted, " : "", which));
      const Wanted wanted{(which & 1) != 0, (which & 2) != 0, (which & 4) != 0, (which & 8) != 0};
      expect_bits_of_apart(DType::bf16, 80, which % 2 == 0 ? Way::together : Way::rematerialised, wanted, weighted);
    }
}

// 90 tokens of 144 numbers, each with two of four experts, one of which has no tokens; every eighth assignment is
// dropped, and the pool has three rows outside the groups.
struct Tokens {
  static constexpr int64_t kTokens = 90, kTopk = 2, kExperts = 4, kSpare = 3;

  explicit Tokens(Rank& rank) {
    std::vector<int32_t> ids(kTokens * kTopk);
    std::vector<int64_t> counts(kExperts), begin(kExperts);
    int64_t kept = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = i % 8 == 5 ? -1 : i % 2 == 0 ? 0 : i % 3 == 0 ? 3 : 1;
      if (ids[i] < 0) continue;
      ++counts[static_cast<size_t>(ids[i])];
      ++kept;
    }
    for (size_t e = 1; e < begin.size(); ++e) begin[e] = begin[e - 1] + counts[e - 1];
    groups = {rank.tensor<int64_t>({kExperts}, begin), rank.tensor<int64_t>({kExperts}, counts)};
    rows = {rank.stream.empty({kept + kSpare}, DType::i64), rank.stream.empty({kTokens * kTopk}, DType::i64), kTopk};
    kernels::send_order(rank.stream, rows.slot, rows.source, rank.tensor<int32_t>({kTokens, kTopk}, ids), groups.count);
  }
  Tensor copied(Rank& rank, const Tensor& tokens) const {
    Tensor out = rank.stream.empty({rows.source.size(0), tokens.size(1)}, tokens.dtype());
    kernels::gather_rows(rank.stream, out, tokens, rows.source, rows.topk);
    return out;
  }
  Tensor summed(Rank& rank, const Tensor& of_rows) const {
    Tensor out = rank.stream.empty({kTokens, of_rows.size(1)}, of_rows.dtype());
    kernels::sum_assignments(rank.stream, out, of_rows, rows.slot);
    return out;
  }
  ops::TokenRows rows;
  RowGroups groups;
};

// Tokens quantised and summed in place give the bits of copies of them, also if the tokens, or the activations, are
// recomputed for the backward.
TEST(Fp8Experts, TokensInPlaceGiveTheBitsOfCopies) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool again : {false, true}) {
      SCOPED_TRACE(cat(dtype, again ? ", computed again" : ""));
      Rank rank(3);
      const Tokens of(rank);
      const int64_t capacity = of.rows.source.size(0);
      const Tensor x = rank.normal({Tokens::kTokens, 144}, dtype, "x"),
                   dy = rank.normal({Tokens::kTokens, 144}, dtype, "dy"),
                   w1 = rank.normal({4, 160, 144}, dtype, "first", 0.1),
                   w2 = rank.normal({4, 144, 80}, dtype, "second", 0.1),
                   weights = rank.normal({capacity}, DType::f32, "weight");
      std::vector<std::vector<double>> results[2];
      for (const bool in_place : {false, true}) {
        Tape tape(rank.stream);
        const Var in = tape.input(in_place ? x : of.copied(rank, x)), first = tape.input(w1), second = tape.input(w2),
                  weight = tape.input(weights);
        const ops::Fp8Experts experts{first, second, nullptr, nullptr, again};
        const auto half = [](Tape& on, const std::vector<Var>& whole) { return ops::scale(on, whole[0], 0.5); };
        const Var rows = again ? rematerialised(tape, {in}, half) : in;
        const Var y = in_place ? ops::fp8_experts(tape, rows, of.rows, of.groups, weight, experts)
                               : ops::fp8_experts(tape, rows, of.groups, weight, experts);
        tape.backward({{y, in_place ? dy : of.copied(rank, dy)}});
        const auto of_tokens = [&](const Tensor& found) { return values(in_place ? found : of.summed(rank, found)); };
        results[in_place] = {of_tokens(y.value()), of_tokens(tape.gradient(in)), values(tape.gradient(first)),
                             values(tape.gradient(second))};
        // Rows outside the groups have no result.
        const int64_t kept = capacity - Tokens::kSpare;
        results[in_place].push_back(values(tape.gradient(weight).narrow(0, 0, kept)));
      }
      for (size_t i = 0; i < results[0].size(); ++i) EXPECT_EQ(results[1][i], results[0][i]) << i;
    }
}

// Within a round, weights stay as they were at their first use; the next round reads them again.
TEST(Fp8Experts, KeepQuantisedWeightsForARound) {
  Rank rank;
  const auto rounds = std::make_shared<ops::Fp8Rounds>();
  const Tensor x = rank.normal({20, 32}, DType::bf16, "x"), w = rank.normal({48, 32}, DType::bf16, "w");
  const auto kept = std::make_shared<const ops::Fp8Quantiser>(
      ops::Fp8Recipe{}, std::make_unique<ops::Fp8KeptWeight>(rank.stream, w.shape(), rounds));
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

TEST(Fp8Experts, ErrorsNameWrongShapes) {
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
  const ops::TokenRows tokens{rank.tensor<int64_t>({4}, {0, 1, 2, 3}), rank.tensor<int64_t>({4}, {0, 1, 2, 3}), 2};
  const auto var = [&](const Shape& shape) { return tape.input(rank.normal(shape, DType::f32, "v")); };
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::fp8_experts(tape, var({4, 32}), tokens, groups, var({4}), {var({1, 64, 32}), var({1, 32, 32})});
            }),
            "fp8_experts: x must be [T, D] and tokens.slot [T K], K=2, got [4, 32] and [4]");
}

}  // namespace
}  // namespace witan
