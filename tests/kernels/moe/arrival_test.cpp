#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>

#include "witan/kernels/moe/selection.h"

namespace witan::kernels {
namespace {

TEST(Arrival, LogarithmsOfWholeNumbers) {
  for (const uint32_t x : {1u, 2u, 3u, 5u, 6u, 7u, 1000u, 65535u, 65536u, 123456789u, 0xffffffffu})
    EXPECT_NEAR(static_cast<double>(log2_whole(x)) * 0x1p-24, std::log2(x), 0.009) << x;
  EXPECT_EQ(log2_whole(1), 0);
  for (uint32_t x = 1; x < 5000; ++x) ASSERT_LE(log2_whole(x), log2_whole(x + 1)) << x;
}

// log2 of -log2 u, divided by the rate (e + 1)^-s.
TEST(Arrival, KeysAreLogarithmsOfTimes) {
  for (const uint32_t word : {0u, 1u, 77777u, 1u << 20, 1u << 23, (1u << 24) - 2, (1u << 24) - 1})
    for (const int64_t e : {0, 1, 6, 1023})
      for (const double s : {0.0, 0.5, 16.0}) {
        const double u = (word + 0.5) * 0x1p-24;
        const double wanted = -(std::log2(-std::log2(u)) + s * std::log2(static_cast<double>(e + 1)));
        const auto key = static_cast<double>(arrival_key(word, e, static_cast<int64_t>(s * 0x1p16)));
        // The last words' waits are a few units of the last place.
        const double tolerance = word < (1u << 24) - 2 ? 0.05 + 0.009 * s : 1;
        EXPECT_NEAR((key + 24 * 0x1p16) * 0x1p-16, wanted, tolerance) << word << " " << e << " " << s;
        EXPECT_LT(std::abs(key), 0x1p24) << "float holds it exactly";
        EXPECT_EQ(static_cast<double>(static_cast<float>(key)), key);
      }
}

TEST(Arrival, LargerWordsAndLikelierExpertsComeEarlier) {
  for (uint32_t word = 0; word + 1 < 1u << 24; word += 9973)
    ASSERT_LE(arrival_key(word, 3, 1 << 16), arrival_key(word + 1, 3, 1 << 16)) << word;
  for (int64_t e = 0; e < 1023; ++e) ASSERT_GE(arrival_key(5000, e, 1 << 14), arrival_key(5000, e + 1, 1 << 14)) << e;
}

}  // namespace
}  // namespace witan::kernels
