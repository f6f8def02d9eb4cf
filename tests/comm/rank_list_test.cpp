#include "witan/comm/rank_list.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace witan {
namespace {

TEST(RankList, NamesRanks) {
  EXPECT_EQ(rank_list(std::vector{3}), "rank 3");
  EXPECT_EQ(rank_list(std::vector{1, 2, 5}), "ranks 1, 2, 5");
}

TEST(RankList, CutsLongLists) {
  std::vector<int> many(64);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(rank_list(many), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 48 more");
}

}  // namespace
}  // namespace witan
