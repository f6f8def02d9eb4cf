#include "witan/parallel/sharding/grad_tree.h"

#include <gtest/gtest.h>

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;

// Of micro-batches [first, first + count): the first largest power of two of them, plus the rest.
double tree(const std::vector<double>& found, int64_t first, int64_t count) {
  if (count == 1) return found[static_cast<size_t>(first)];
  int64_t half = 1;
  while (2 * half < count) half *= 2;
  return tree(found, first, half) + tree(found, first + half, count - half);
}

// Of very different sizes: another order of additions has other bits.
std::vector<double> summands(int64_t count) {
  std::vector<double> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(std::pow(-3.7, static_cast<double>(i * i % 11)) + 1e-3);
  return all;
}

TEST(GradTree, LevelsAreTheDigitsOfACounter) {
  EXPECT_EQ(grad_tree::level_of(0), 0);
  EXPECT_EQ(grad_tree::level_of(1), 1);
  EXPECT_EQ(grad_tree::level_of(2), 1);
  EXPECT_EQ(grad_tree::level_of(7), 3);
  EXPECT_EQ(grad_tree::level_count(1), 1);
  EXPECT_EQ(grad_tree::level_count(2), 2);
  EXPECT_EQ(grad_tree::level_count(4), 3);
  EXPECT_EQ(grad_tree::level_count(5), 3);
}

TEST(GradTree, SumsMicroBatchesInTheTreeOfTheirNumbers) {
  Rank rank;
  for (int64_t count = 1; count <= 17; ++count) {
    const std::vector<double> found = summands(count);
    const Tensor levels = rank.stream.empty({grad_tree::level_count(count), 1}, DType::f64);
    for (int64_t i = 0; i < count; ++i) {
      levels.data<double>()[grad_tree::level_of(i)] = found[static_cast<size_t>(i)];
      grad_tree::sum_levels(rank.stream, levels, i, count);
    }
    EXPECT_EQ(levels.data<double>()[0], tree(found, 0, count)) << count;
  }
}

// The meta device may leave out all micro-batches between the first and the last.
TEST(GradTree, TheMetaDeviceCountsAllAdditionsAtTheFirstAndTheLast) {
  for (int64_t count = 1; count <= 17; ++count) {
    ThreadPool pool(1);
    Stream stream({Device::Kind::meta}, Arena::meta(), pool);
    const Tensor levels = stream.empty({grad_tree::level_count(count), 3}, DType::f32);
    grad_tree::sum_levels(stream, levels, 0, count);
    if (count > 1) grad_tree::sum_levels(stream, levels, count - 1, count);
    EXPECT_EQ(stream.flops(), static_cast<double>(3 * (count - 1))) << count;
    Rank rank;
    const Tensor real = rank.stream.zeros({grad_tree::level_count(count), 3}, DType::f32);
    for (int64_t i = 0; i < count; ++i) grad_tree::sum_levels(rank.stream, real, i, count);
    EXPECT_EQ(rank.stream.flops(), stream.flops()) << count;
  }
}

TEST(GradTree, SumsSourcesInTheSameTree) {
  Rank rank;
  for (const int64_t count : {1, 2, 4, 8}) {
    const std::vector<double> found = summands(count);
    const Tensor sources = rank.tensor<double>({count, 1}, found);
    grad_tree::sum_sources(rank.stream, sources);
    EXPECT_EQ(sources.data<double>()[0], tree(found, 0, count)) << count;
  }
}

}  // namespace
}  // namespace witan
