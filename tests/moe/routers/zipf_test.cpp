#include "witan/moe/routers/zipf.h"

#include <gtest/gtest.h>

#include <cmath>

namespace witan {
namespace {

// With K = 1 an expert's share is its rate's.
double largest_share(int64_t E, double exponent) {
  double rates = 0;
  for (int64_t e = 0; e < E; ++e) rates += std::pow(static_cast<double>(e + 1), -exponent);
  return 1 / rates;
}

TEST(Zipf, TheBusiestOfOneExpertATokenHasItsLoad) {
  for (const int64_t E : {4, 64, 256})
    for (const double imbalance : {1.0, 1.5, 2.0, 3.5}) {
      const double exponent = zipf_exponent(E, 1, imbalance);
      EXPECT_NEAR(largest_share(E, exponent) * static_cast<double>(E), imbalance, 0.005 * imbalance) << E;
    }
}

TEST(Zipf, AnEvenLoadHasNoExponentAndNoLoadIsOutOfReach) {
  EXPECT_LT(zipf_exponent(64, 8, 1), 1e-3);
  EXPECT_LT(zipf_exponent(8, 8, 1), 17) << "each token has every expert: any law does";
  EXPECT_LE(zipf_exponent(64, 8, 8), 16) << "every token chooses expert 0";
  EXPECT_GT(zipf_exponent(64, 8, 6), zipf_exponent(64, 8, 4));
}

}  // namespace
}  // namespace witan
