#include "witan/tensor/timing.h"

#include "support/rank.h"

namespace witan {
namespace {

TEST(Timing, MeasuresTheMedianOfSingleCalls) {
  testing::Rank rank(1);
  int calls = 0;
  const double begin = rank.stream.now();
  volatile double sum = 0;
  const double seconds = median_seconds(rank.stream, 0.01, [&] {
    ++calls;
    for (int i = 0; i < 10000; ++i) sum = sum + 1;
  });
  const double all = rank.stream.now() - begin;
  EXPECT_GT(calls, 8);  // two warm-up calls, one timed call, five samples
  EXPECT_GT(seconds, 1e-6);
  EXPECT_LT(seconds * calls, 3 * all);  // the median may exceed the mean, but not by much
}

}  // namespace
}  // namespace witan
