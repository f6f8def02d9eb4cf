// Expected values: tests/golden/base/make_torch_random.py.
#include "witan/base/numbers/torch_random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace witan {
namespace {

using Values = std::vector<float>;

Values uniform(TorchRandom& random, int64_t n, double bound) {
  Values out(static_cast<size_t>(n), NAN);
  random.uniform(n, bound,
                 [&](int64_t first, std::span<const float> values) { std::ranges::copy(values, out.begin() + first); });
  return out;
}

Values normal(TorchRandom& random, int64_t n) {
  Values out(static_cast<size_t>(n), NAN);
  random.normal(n,
                [&](int64_t first, std::span<const float> values) { std::ranges::copy(values, out.begin() + first); });
  return out;
}

// PyTorch uses its own logarithm and cosine, which differ by a few ULPs.
void expect_near(const Values& values, const Values& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], 1e-6F * std::max(1.0F, std::abs(expected[i]))) << i;
}

TEST(TorchRandom, MatchesPyTorchInCallOrder) {
  TorchRandom random(1234);
  expect_near(normal(random, 40),
              {-0x1.c99968p-4F, -0x1.fc821ep-2F, 0x1.4df996p-3F,  -0x1.c36c94p-1F, 0x1.b98ce6p-5F,  0x1.563514p-1F,
               -0x1.e8b712p-5F, -0x1.deb7c8p-2F, -0x1.b8d688p-3F, 0x1.c4969ep-1F,  -0x1.844f38p-1F, -0x1.79b882p-2F,
               -0x1.5e9c6ep-2F, -0x1.66e7ap+0F,  0x1.4857f2p-2F,  -0x1.059874p+0F, 0x1.990096p-1F,  -0x1.7a027ep-4F,
               -0x1.68eb3cp-1F, -0x1.9a3468p+0F, 0x1.280918p-2F,  0x1.f5a0b4p-2F,  -0x1.8a856ep-2F, -0x1.6c8fccp-1F,
               0x1.888cdep-1F,  0x1.37e044p-6F,  0x1.6867eap-6F,  0x1.27381cp+0F,  -0x1.5b79f8p-2F, 0x1.3f3f0ap-3F,
               0x1.cb1446p-1F,  -0x1.2fea04p-2F, -0x1.5f1462p-1F, -0x1.96a06ep-5F, -0x1.3f9dd4p+0F, -0x1.b3a3bep-1F,
               -0x1.89b94cp-1F, -0x1.8f81b4p+0F, -0x1.0fd2cp-1F,  0x1.bdf418p-3F});
  EXPECT_EQ(uniform(random, 3, 1 / std::sqrt(3.0)), (Values{-0x1.cd15dap-2F, -0x1.22c03ap-2F, -0x1.3baeacp-4F}));
  const Values row = uniform(random, 1024, 1 / std::sqrt(1024.0));
  EXPECT_EQ(Values(row.begin(), row.begin() + 6),
            (Values{-0x1.c2188p-9F, -0x1.bc2cp-13F, 0x1.2569acp-6F, 0x1.487d7p-7F, -0x1.7a919p-6F, -0x1.339d78p-7F}));
  expect_near(normal(random, 16),
              {0x1.264ab2p+1F, 0x1.9dce4ep-1F, -0x1.7ee636p-3F, 0x1.cb6234p-3F, 0x1.cd563cp-4F, 0x1.130bbp+0F,
               -0x1.eeafa4p-6F, -0x1.4f9ebp-2F, -0x1.493f6ep+0F, 0x1.eb7988p-1F, 0x1.975eccp-3F, 0x1.3d5dbap-1F,
               0x1.88d31cp-1F, -0x1.23bb7p-2F, 0x1.a9c45ap-2F, -0x1.0f913ep+1F});
}

TEST(TorchRandom, IsIndependentOfCountsAndChunks) {
  TorchRandom one(7), same(7);
  const Values many = normal(one, 16 * 1000), few = normal(same, 16);
  EXPECT_EQ(Values(many.begin(), many.begin() + 16), few);
  TorchRandom a(9), b(9);
  const Values whole = uniform(a, 10'000, 0.5);
  Values parts = uniform(b, 4097, 0.5);
  const Values rest = uniform(b, 10'000 - 4097, 0.5);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(whole, parts);
}

TEST(TorchRandom, TakesSeedsModulo32Bits) {
  TorchRandom small(5), large(5 + (uint64_t{1} << 32)), other(6);
  const Values values = uniform(small, 8, 1);
  EXPECT_EQ(uniform(large, 8, 1), values);
  EXPECT_NE(uniform(other, 8, 1), values);
}

}  // namespace
}  // namespace witan
