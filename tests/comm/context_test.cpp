#include "witan/comm/context.h"

#include <gtest/gtest.h>

#include <set>

#include "support/message_of.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using kernels::PositionRuns;

TEST(Context, RanksHoldEveryPositionOnce) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const int64_t S = 10L * 2 * ranks, tokens = S / ranks;
    std::set<int64_t> held;
    for (int rank = 0; rank < ranks; ++rank) {
      const PositionRuns positions = context_positions(S, ranks, rank);
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t position = positions.at(i);
        EXPECT_TRUE(held.insert(position).second) << position << " is held twice";
        EXPECT_TRUE(i == 0 || position > positions.at(i - 1)) << "positions rise";
      }
    }
    EXPECT_EQ(static_cast<int64_t>(held.size()), S);
    EXPECT_EQ(*held.rbegin(), S - 1);
  }
}

TEST(Context, PairsOfAnyTwoRanksAreAsMany) {
  constexpr int kRanks = 5;
  constexpr int64_t kChunk = 6, kTokens = 2 * kChunk, S = kTokens * kRanks;
  for (int mine = 0; mine < kRanks; ++mine)
    for (int theirs = 0; theirs < kRanks; ++theirs) {
      const PositionRuns queries = context_positions(S, kRanks, mine), keys = context_positions(S, kRanks, theirs);
      int64_t pairs = 0;
      for (int64_t i = 0; i < kTokens; ++i) pairs += keys.before(queries.at(i) + 1, kTokens);
      EXPECT_EQ(pairs, 2 * kChunk * kChunk + (mine == theirs ? kChunk : 0)) << mine << " and " << theirs;
    }
}

// Every position of every sequence is where it was once parts are gathered, and comes back from there.
TEST(Context, PartsAreGatheredInTheOrderOfTheSequence) {
  for (const int ranks : {2, 3, 4})
    testing::on_ranks(ranks, [&](testing::ThreadRank& rank) {
      const int64_t B = 3, S = 4L * ranks, own = S / ranks, I = 2;
      const auto group = rank.everyone("context");
      const PositionRuns positions = context_positions(S, ranks, rank.rank);
      std::vector<int32_t> part;
      for (int64_t b = 0; b < B; ++b)
        for (int64_t s = 0; s < own; ++s)
          for (int64_t i = 0; i < I; ++i) part.push_back(static_cast<int32_t>((b * S + positions.at(s)) * I + i));
      const Tensor held = rank.stream.empty({B, own, I}, DType::i32);
      rank.stream.write(held, part.data());
      const Tensor whole = gather_positions(rank.stream, held, *group);
      const auto found = whole.to_vector<int32_t>();
      for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], static_cast<int32_t>(i));
      EXPECT_EQ(whole.shape(), Shape({B, S, I}));
      EXPECT_EQ(own_positions(rank.stream, whole, *group).to_vector<int32_t>(), part);
    });
}

TEST(Context, OneRankHoldsAnyLength) {
  for (const int64_t S : {0, 1, 7}) EXPECT_EQ(context_positions(S, 1, 0), PositionRuns{});
}

TEST(Context, LengthsThatDoNotDivideAreRefusedWithTheNearest) {
  const auto message = [](int64_t S) { return test::message_of<ConfigError>([&] { context_positions(S, 3, 1); }); };
  EXPECT_EQ(message(100),
            "a sequence of 100 tokens cannot be split into two equal chunks for each of 3 context-parallel ranks; the "
            "nearest length that can is 96 or 102");
  EXPECT_EQ(message(5),
            "a sequence of 5 tokens cannot be split into two equal chunks for each of 3 context-parallel ranks; the "
            "nearest length that can is 6");
}

}  // namespace
}  // namespace witan
