#include "witan/model/activation_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace witan {
namespace {

TEST(ActivationStatistics, AreComputedFromMomentsOfAllParts) {
  ActivationMoments moments{.square_sum = 3, .largest = 1.5, .zeros = 1, .elements = 4};
  moments.add({.square_sum = 6, .largest = 2, .zeros = 3, .elements = 12});
  std::set<std::string> names;
  for (const ActivationStatistic& statistic : activation_statistics()) {
    EXPECT_TRUE(names.insert(statistic.name).second) << statistic.name << " twice";
    const std::string name = statistic.name;
    const double expected = name.ends_with("_rms") ? 0.75 : name.ends_with("_max") ? 2 : 0.25;
    EXPECT_EQ(statistic.compute(moments), expected) << name;
  }
  EXPECT_EQ(names.size(), 7u);
}

TEST(ActivationStatistics, NaNCountsAsTheLargestValue) {
  ActivationMoments moments;
  moments.add({.largest = 2});
  moments.add({.largest = std::nan("")});
  moments.add({.largest = 3});
  EXPECT_TRUE(std::isnan(moments.largest));
}

}  // namespace
}  // namespace witan
