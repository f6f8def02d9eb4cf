#include "witan/optim/clip.h"

#include <cmath>

#include "optim/optim_support.h"

namespace witan {
namespace {

using testing::parameter_with_gradient;
using testing::Rank;
using testing::values;

TEST(Clip, TreatsEachExpertSeparately) {
  Rank rank;
  const int64_t n = kernels::kChunkElements + 1;
  EXPECT_EQ(chunks_before(*parameter_with_gradient(rank, {"p", {3, n}}), 3 * n), 4);
  EXPECT_EQ(chunks_before(*parameter_with_gradient(rank, {.name = "e", .shape = {3, 1, n}, .expert = true}), 3 * n), 6);
  EXPECT_EQ(chunks_before(*parameter_with_gradient(rank, {"one", {1}}), 1), 1);
  const Parameter none(rank.stream, {.name = "none", .shape = {4, 2, 2}, .expert = true}, {Region(), {0, 2, 2}}, 1);
  EXPECT_EQ(chunks_before(none, 0), 0);
}

// An expert's sums have the same bits alone and together with others.
TEST(Clip, SumsDoNotDependOnOtherExperts) {
  Rank rank;
  const auto experts = parameter_with_gradient(rank, {.name = "e", .shape = {3, 100, 1000}, .expert = true});
  const Tensor sums = rank.poisoned({6, 2}, DType::f64);
  const auto sum = [&](const Tensor& to, const Parameter& parameter, const Tensor& gradient) {
    std::vector<kernels::SquareSumsItem> items;
    add_square_sums(items, parameter, gradient.reshape({gradient.elements()}), 0, 0);
    kernels::square_sums_all(rank.stream, to, items, {});
  };
  sum(sums, *experts, experts->gradient());
  Parameter alone(rank.stream, experts->spec(), experts->spec().part(3, 1, 1, 0), 1);
  alone.bind_gradient(experts->gradient().narrow(0, 1, 1));
  const Tensor one = rank.poisoned({2, 2}, DType::f64);
  sum(one, alone, alone.gradient());
  EXPECT_EQ(values(one), values(sums.narrow(0, 2, 2)));
}

// However a parameter is split between chunks, each chunk's sums have the same bits.
TEST(Clip, SumsDoNotDependOnTheSharding) {
  Rank rank;
  constexpr int64_t n = kernels::kChunkElements;
  for (const bool experts : {false, true}) {
    const auto parameter = parameter_with_gradient(rank, {.name = "p", .shape = {3, 2 * n + 5}, .expert = experts});
    const int64_t all = parameter->elements(), rows = chunks_before(*parameter, all);
    const auto sums_of = [&](const std::vector<int64_t>& cuts) {
      const Tensor sums = rank.poisoned({rows, 2}, DType::f64);
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        std::vector<kernels::SquareSumsItem> items;
        add_square_sums(items, *parameter, parameter->gradient_shard(cuts[i], cuts[i + 1] - cuts[i]), cuts[i],
                        chunks_before(*parameter, cuts[i]));
        EXPECT_LE(items.size(), 3u);
        kernels::square_sums_all(rank.stream, sums, items, {});
      }
      return values(sums);
    };
    const auto whole = sums_of({0, all});
    EXPECT_EQ(rows, experts ? 9 : 7);
    EXPECT_EQ(sums_of({0, n, n, 2 * n, all}), whole);
    if (experts) {
      EXPECT_EQ(sums_of({0, 2 * n, 2 * n + 5 + n, all}), whole);
    }
  }
}

TEST(Clip, ScalesTheStepAndReadsTheNorm) {
  Rank rank;
  StepState step(rank.stream);
  step.set({0.5}, 3, 3);
  const Tensor total = rank.tensor<double>({2}, {25, 7});
  EXPECT_EQ(read_norm(rank.stream, total).norm, 5);
  EXPECT_EQ(read_norm(rank.stream, total).zeros, 7);
  clip(rank.stream, step, total, 2);
  EXPECT_DOUBLE_EQ(step.gradient_scale(), 2 / (5 + 1e-6));
  EXPECT_FALSE(step.skipped());
  EXPECT_EQ(step.learning_rate(), 0.5);
  clip(rank.stream, step, rank.tensor<double>({2}, {NAN, 0}), 2);
  EXPECT_TRUE(step.skipped());
  step.set({0.5}, 3, 3);
  EXPECT_FALSE(step.skipped());
  EXPECT_EQ(step.gradient_scale(), 1);
}

}  // namespace
}  // namespace witan
