#include "witan/train/trace/clocks.h"

#include "support/thread_world.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;

TEST(Clocks, OfOneHostAreOne) {
  on_ranks(3, [](ThreadRank& rank) { EXPECT_EQ(first_clock_ahead_ns(rank.stream, *rank.everyone()), 0); });
}

TEST(Clocks, ThatDifferAreToldFromRoundTrips) {
  constexpr int64_t kSecond = 1'000'000'000;
  on_ranks(3, [&](ThreadRank& rank) {
    const auto clock = [&] { return steady_ns() + rank.rank * 7 * kSecond; };
    const int64_t ahead = first_clock_ahead_ns(rank.stream, *rank.everyone(), clock);
    EXPECT_NEAR(static_cast<double>(ahead), -7e9 * rank.rank, 0.2e9) << "a busy machine's round trip";
  });
}

// Traces of hosts whose clocks differ begin together.
TEST(Clocks, ShowOneMomentEachInItsOwnWay) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t before = steady_ns();
  on_ranks(3, [&](ThreadRank& rank) {
    const int64_t skew = rank.rank * 7 * kSecond;
    const int64_t moment = common_moment_ns(rank.stream, *rank.everyone(), [&] { return steady_ns() + skew; });
    EXPECT_GE(moment - skew, before - kSecond);
    EXPECT_LE(moment - skew, steady_ns() + kSecond) << "a busy machine's round trip";
  });
}

}  // namespace
}  // namespace witan
