#include "witan/train/step/features/exchange_backoff.h"

#include <gtest/gtest.h>

#include <vector>

namespace witan {
namespace {

// Of so many steps those that were tried in parts, where each that overflows(step) does.
std::vector<int64_t> tried_steps(int64_t steps, bool (*overflows)(int64_t step)) {
  ExchangeBackoff backoff;
  std::vector<int64_t> tried;
  for (int64_t step = 0; step < steps; ++step) {
    if (backoff.waits()) {
      backoff.waited();
      continue;
    }
    tried.push_back(step);
    backoff.tried(overflows(step));
  }
  return tried;
}

TEST(ExchangeBackoff, TriesEveryStepWhereAllHaveRoom) {
  EXPECT_EQ(tried_steps(4, [](int64_t) { return false; }), (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(ExchangeBackoff, WaitsTwiceAsLongAfterEachFurtherOverflow) {
  EXPECT_EQ(tried_steps(20, [](int64_t) { return true; }), (std::vector<int64_t>{0, 1, 3, 6, 11}));
  // Nine tries and waits of 0, 1, 2 … 128 steps come before the tenth; from there on each 257th step is tried.
  const std::vector<int64_t> tried = tried_steps(1000, [](int64_t) { return true; });
  ASSERT_EQ(tried.size(), 12u);
  EXPECT_EQ(tried[9], 264);
  EXPECT_EQ(tried[10], 264 + 257);
  EXPECT_EQ(tried[11], 264 + 2 * 257);
}

TEST(ExchangeBackoff, TriesAgainSoonWhereOverflowsAreRare) {
  EXPECT_EQ(tried_steps(8, [](int64_t step) { return step == 2; }).size(), 8u);
  EXPECT_EQ(tried_steps(10, [](int64_t step) { return step == 0 || step == 1 || step == 6; }),
            (std::vector<int64_t>{0, 1, 3, 4, 5, 6, 7, 8, 9}))
      << "a few that had room make up for it";
}

}  // namespace
}  // namespace witan
