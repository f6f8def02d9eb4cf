#include "witan/base/numbers/median.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

TEST(Median, IsTheValueInTheMiddle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(lower_median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(lower_median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 3);
  EXPECT_EQ(lower_median({4, 1, 3, 2}), 2);
  EXPECT_EQ(median({1, 1, -1, 1}), 1);
}

}  // namespace
}  // namespace witan
