#include "witan/data/stats/length_histogram.h"

#include <cmath>

#include "data/data_support.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

TEST(LengthHistogram, QuantilesAreAccurateToAPercent) {
  const Philox random(3, 5);
  LengthHistogram histogram;
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; i < 5000; ++i) lengths.push_back(static_cast<int64_t>(std::exp(18 * random.uniform(i)) - 1));
  int64_t sum = 0;
  for (const int64_t length : lengths) {
    histogram.add(length);
    sum += length;
  }
  std::sort(lengths.begin(), lengths.end());
  EXPECT_EQ(histogram.count(), 5000);
  EXPECT_EQ(histogram.sum(), sum);
  EXPECT_EQ(histogram.least(), lengths.front());
  EXPECT_EQ(histogram.most(), lengths.back());
  EXPECT_EQ(histogram.mean(), static_cast<double>(sum) / 5000);
  for (const double share : {0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0}) {
    const auto rank = static_cast<size_t>(std::max(std::ceil(share * 5000), 1.0));
    const int64_t exact = lengths[rank - 1], given = histogram.quantile(share);
    EXPECT_LE(given, exact) << share;
    EXPECT_GT(static_cast<double>(given), 0.99 * static_cast<double>(exact) - 1e-9) << share;
    if (exact < 256) {
      EXPECT_EQ(given, exact) << share;
    }
  }
}

TEST(LengthHistogram, QuantilesStayWithinTheRange) {
  LengthHistogram histogram;
  histogram.add(1003);  // its bucket begins at 1000
  for (const double share : {0.0, 0.5, 1.0}) EXPECT_EQ(histogram.quantile(share), 1003);
}

TEST(LengthHistogram, HasTwoBarsPerDoubling) {
  LengthHistogram histogram;
  EXPECT_TRUE(histogram.bars().empty());
  EXPECT_EQ(histogram.quantile(0.5), 0);
  for (const int64_t length : {3, 4, 5, 5, 7, 16, 23, 24}) histogram.add(length);
  using Bar = LengthHistogram::Bar;
  EXPECT_EQ(histogram.bars(),
            (std::vector<Bar>{{3, 4, 1}, {4, 6, 3}, {6, 8, 1}, {8, 12, 0}, {12, 16, 0}, {16, 24, 2}, {24, 32, 1}}));
}

TEST(LengthHistogram, HoldsTheLargestLength) {
  LengthHistogram histogram;
  histogram.add(int64_t{1} << 40);
  histogram.add((int64_t{1} << 40) - 1);
  const auto bars = histogram.bars();
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_EQ(bars[0].end, int64_t{1} << 40);
  EXPECT_EQ(bars[1].begin, int64_t{1} << 40);
  EXPECT_EQ(histogram.quantile(1), int64_t{1} << 40);
}

}  // namespace
}  // namespace witan
