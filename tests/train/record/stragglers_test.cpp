#include "witan/train/record/stragglers.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

using Changes = std::vector<Stragglers::Change>;

// Steps of 0.1 s; rank 3 is slower by `factor` from step 40 on, and ranks are judged every five steps. Returns the step
// of the first change, or -1.
int64_t said_at(double factor, std::vector<Stragglers::Change>& said) {
  Stragglers stragglers({0, 0, 0, 0}, 1.2);
  std::vector<RecentSteps> recent(4);
  for (int64_t step = 0; step < 100; ++step) {
    for (int rank = 0; rank < 4; ++rank) {
      const double noise = step % 7 == rank ? 3 : 1;  // an occasional step takes long
      recent[static_cast<size_t>(rank)].add(0.1 * noise * (rank == 3 && step >= 40 ? factor : 1));
    }
    if (step % 5 != 0 || step < 10) continue;
    std::vector<double> seconds;
    for (const RecentSteps& one : recent) seconds.push_back(*one.median());
    const Changes changes = stragglers.judge(seconds);
    said.insert(said.end(), changes.begin(), changes.end());
    if (!said.empty()) return step;
  }
  return -1;
}

TEST(Stragglers, AreNamedWithinTwentySteps) {
  Changes said;
  const int64_t at = said_at(1.3, said);
  EXPECT_GT(at, 40);
  EXPECT_LE(at, 60);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].rank, 3);
  EXPECT_TRUE(said[0].slow);
  EXPECT_NEAR(said[0].ratio, 1.3, 1e-9);
  EXPECT_EQ(describe(said[0], "host h"),
            "rank 3 (host h) takes 1.30 times the median of 4 ranks over the last 20 steps: 0.13 s instead of 0.1 s");
}

TEST(Stragglers, SmallerDelaysAreNotReported) {
  Changes said;
  EXPECT_EQ(said_at(1.15, said), -1);
}

TEST(Stragglers, AreNamedOnceAndWhenTheyRecover) {
  Stragglers stragglers({0, 0, 0}, 1.2);
  EXPECT_EQ(stragglers.judge({0.1, 0.13, 0.1}).size(), 1u);
  EXPECT_TRUE(stragglers.judge({0.1, 0.119, 0.1}).empty()) << "below the threshold, but not yet close to the others";
  EXPECT_TRUE(stragglers.judge({0.1, 0.13, 0.1}).empty());
  const Changes changes = stragglers.judge({0.1, 0.105, 0.1});
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(describe(changes[0], "host h"), "rank 1 (host h) is no longer slow: 1.05 times the median of 3 ranks");
}

TEST(Stragglers, OfTwoRanksTheFasterIsTheReference) {
  Stragglers stragglers({0, 0}, 1.2);
  const Changes changes = stragglers.judge({0.13, 0.1});
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].rank, 0);
}

TEST(Stragglers, PipelineStagesAreComparedSeparately) {
  Stragglers stragglers({0, 0, 1, 1}, 1.2);
  EXPECT_TRUE(stragglers.judge({0.1, 0.1, 0.3, 0.3}).empty());
  EXPECT_EQ(stragglers.judge({0.1, 0.1, 0.3, 0.4}).size(), 1u);
}

TEST(Stragglers, ShortStepsAreNotJudged) {
  Stragglers stragglers({0, 0}, 1.2);
  EXPECT_TRUE(stragglers.judge({0.099, 0.001}).empty());
}

TEST(RecentSteps, AreUnknownAtFirst) {
  RecentSteps recent;
  for (size_t i = 1; i < RecentSteps::kLeast; ++i) recent.add(1);
  EXPECT_FALSE(recent.median());
  recent.add(1);
  EXPECT_EQ(recent.median(), 1);
  for (size_t i = 0; i < RecentSteps::kWindow; ++i) recent.add(2);
  EXPECT_EQ(recent.median(), 2) << "older steps are dropped";
}

}  // namespace
}  // namespace witan
