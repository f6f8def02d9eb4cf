#include "witan/tokenizer/models/pair_ranks.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace witan {
namespace {

TEST(PairRanks, AreThoseThatWerePutLast) {
  std::mt19937 random(3);
  const int32_t tokens = 300;
  const auto token = [&] { return static_cast<int32_t>(random() % tokens); };
  std::map<std::pair<int32_t, int32_t>, uint64_t> expected;
  PairRanks ranks(2000, tokens);
  for (int i = 0; i < 2000; ++i) {
    const int32_t left = token(), right = token();
    const uint64_t rank = random() % 100'000;
    expected[{left, right}] = rank;
    ranks.put(left, right, rank);
  }
  for (int32_t left = 0; left < tokens; ++left)
    for (int32_t right = 0; right < tokens; ++right) {
      const auto found = expected.find({left, right});
      ASSERT_EQ(ranks.find(left, right), found == expected.end() ? PairRanks::kNone : found->second);
      if (found != expected.end()) {
        ASSERT_TRUE(ranks.may_have(left, right));
      }
    }
}

TEST(PairRanks, SayWhatHasNoRoom) {
  const PairRanks ranks(10, (1 << 20) - 1);  // 24 bits are left
  EXPECT_TRUE(ranks.has_room_for((1 << 24) - 2));
  EXPECT_FALSE(ranks.has_room_for((1 << 24) - 1));
  EXPECT_EQ(PairRanks().find(1, 2), PairRanks::kNone);
}

}  // namespace
}  // namespace witan
