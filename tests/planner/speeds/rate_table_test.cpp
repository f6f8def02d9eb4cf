#include "witan/planner/speeds/rate_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace witan {
namespace {

RateTable table() {
  return {{{1, 10, 1000}, {2, 8}}, {1, 4, 2, 16, 3, 64}};
}

TEST(RateTable, IsExactAtItsPoints) {
  const RateTable of = table();
  ASSERT_TRUE(of.valid());
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 2; ++j)
      EXPECT_NEAR(of.of({of.axes[0][i], of.axes[1][j]}), of.values[2 * i + j], 1e-12 * of.values[2 * i + j]);
}

TEST(RateTable, IsLinearInLogarithmsBetweenThem) {
  EXPECT_NEAR(table().of({1, 4}), 2, 1e-12) << "half-way from 2 to 8: the root of 1 * 4";
  EXPECT_NEAR(table().of({100, 8}), 32, 1e-12) << "half-way from 10 to 1000: the root of 16 * 64";
  EXPECT_NEAR(table().of({100, 4}), std::sqrt(32 * std::sqrt(6.0)), 1e-12);
}

TEST(RateTable, StaysAtItsBorderBeyondIt) {
  EXPECT_NEAR(table().of({0.1, 2}), 1, 1e-12);
  EXPECT_NEAR(table().of({1e6, 1e6}), 64, 1e-12);
}

TEST(RateTable, RisesWhereItsValuesDo) {
  const RateTable of = table();
  for (double second = 1; second < 20; second *= 1.3)
    for (double first = 0.5; first < 3000; first *= 1.1)
      EXPECT_LE(of.of({first, second}), of.of({1.1 * first, second}) * (1 + 1e-12)) << first << ", " << second;
}

TEST(RateTable, KnowsWhatIsNone) {
  EXPECT_FALSE(RateTable{}.valid());
  RateTable damaged = table();
  damaged.values.pop_back();
  EXPECT_FALSE(damaged.valid());
  for (const double value : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    damaged = table();
    damaged.values[3] = value;
    EXPECT_FALSE(damaged.valid()) << value;
    damaged = table();
    damaged.axes[1][0] = value;
    EXPECT_FALSE(damaged.valid()) << value;
  }
  damaged = table();
  std::swap(damaged.axes[0][0], damaged.axes[0][1]);
  EXPECT_FALSE(damaged.valid());
  damaged.axes.assign(20, std::vector<double>(1000, 1));
  EXPECT_FALSE(damaged.valid());
}

}  // namespace
}  // namespace witan
