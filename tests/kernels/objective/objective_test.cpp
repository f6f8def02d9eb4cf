// The formulas are tested through the ops, against TRL (tests/ops/objective/objective_test.cpp); this is about what
// only kernels have: dtypes, sizes, threads, outputs that are written whole.
#include "witan/kernels/objective/objective.h"

#include <functional>
#include <map>

#include "support/objective_case.h"
#include "support/rank.h"

namespace witan {
namespace {

using testing::ObjectiveCase;
using testing::Rank;
using testing::values;

TEST(ObjectiveKernels, RoundTheResultsOfFloat64) {
  Rank rank;
  for (const int64_t tokens : {0, 1, 24, 3000}) {
    const auto wide = ObjectiveCase(rank, DType::f64, tokens).run(rank.stream, rank);
    const auto narrow = ObjectiveCase(rank, DType::f32, tokens).run(rank.stream, rank);
    for (const auto& [name, tensor] : wide)
      EXPECT_TRUE(testing::close(narrow.at(name), tensor, 2e-5, 2e-5)) << name << ", " << tokens << " tokens";
  }
}

TEST(ObjectiveKernels, HaveTheSameBitsOnAnyNumberOfThreads) {
  Rank one(1), three(3);
  for (const DType dtype : {DType::f64, DType::f32}) {
    const auto alone = ObjectiveCase(one, dtype, 3000).run(one.stream, one);
    const auto together = ObjectiveCase(three, dtype, 3000).run(three.stream, three);
    for (const auto& [name, tensor] : alone) EXPECT_EQ(values(together.at(name)), values(tensor)) << name;
  }
}

TEST(ObjectiveKernels, SumTheTokensOfEachSequence) {
  Rank rank;
  const kernels::RowSequences sequences{rank.tensor<int32_t>({8}, {0, 0, 1, -1, 0, 2, 2, -1}), 2, 3};
  const Tensor mask = rank.tensor<float>({8}, {0, 1, 1, 0, 1, 1, 0.5f, 0}),
               terms = rank.tensor<double>({8}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Tensor sums = rank.poisoned({6}, DType::f64), counts = rank.poisoned({6}, DType::f64),
               weights = rank.poisoned({8}, DType::f64);
  kernels::sequence_sums(rank.stream, sums, terms, mask, sequences);
  kernels::sequence_sums(rank.stream, counts, {}, mask, sequences);
  EXPECT_EQ(values(sums), (std::vector<double>{2, 3, 0, 5, 0, 13}));
  EXPECT_EQ(values(counts), (std::vector<double>{1, 1, 0, 1, 0, 2}));
  kernels::sequence_weights(rank.stream, weights, mask, rank.tensor<double>({1}, {4}), counts, sequences, 1);
  EXPECT_EQ(values(weights), (std::vector<double>{0, 0.25, 0.25, 0, 0.25, 0.125, 0.0625, 0}));
}

}  // namespace
}  // namespace witan
