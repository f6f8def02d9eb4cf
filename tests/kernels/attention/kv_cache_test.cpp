#include "witan/kernels/attention/kv_cache.h"

#include "support/attention.h"
#include "support/rank.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;
using testing::cache_tokens;
using testing::Rank;
using testing::values;

TEST(AppendToCache, WritesOnlyItsPositionsOfEveryRow) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const int64_t B = 3, most = 7, G = 2, hd = 5, row = G * hd;
    const Tensor cache = rank.normal({B, most, G, hd}, dtype, "cache");
    auto expected = values(cache);
    int64_t past = 0;
    for (const int64_t S : {4, 1, 2, 0}) {  // a prompt, a token, two more that fill it, nothing
      const Tensor x = rank.normal({1, B * S, G, hd}, dtype, cat("x at ", past));
      std::vector<CacheRun> runs;
      for (int64_t b = 0; b < B; ++b) runs.push_back({b, past, S});
      kernels::append_to_cache(rank.stream, cache, x, cache_tokens(rank, runs));
      const auto added = values(x);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < S * row; ++i)
          expected[size_t((b * most + past) * row + i)] = added[size_t(b * S * row + i)];
      past += S;
      EXPECT_EQ(values(cache), expected) << dtype << ", " << past << " positions";
    }
  }
}

TEST(AppendToCache, RingsMayBeAtDifferentPositions) {
  Rank rank;
  const Tensor cache = rank.tensor<double>({2, 3, 1, 1}, {0, 0, 0, 0, 0, 0});
  const Tensor x = rank.tensor<double>({4, 1, 1}, {1, 2, 3, 4});
  kernels::append_to_cache(rank.stream, cache, x, cache_tokens(rank, {{1, 0, 1}, {0, 7, 3}}));
  EXPECT_EQ(values(cache), (std::vector<double>{4, 2, 3, 1, 0, 0}));  // positions 9, 7 and 8; 0
}

// A head's largest number is 448 times its scale, and every number within a sixteenth of itself, or half the smallest
// code.
TEST(AppendQuantised, RoundsEachHeadByItsLargestNumber) {
  Rank rank(2);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const int64_t T = 5, slots = 4, G = 3, hd = 20;
    const Tensor x = rank.normal({1, T, G, hd}, dtype, "x"), cache = rank.stream.empty({2, slots, G, hd}, DType::f8),
                 scales = rank.poisoned({2, slots, G}, DType::f32);
    const CacheTokens tokens = cache_tokens(rank, {{1, 2, 3}, {0, 0, 2}});  // the first in slots 2, 3 and 0
    kernels::append_quantised(rank.stream, cache, scales, x, tokens);
    const auto numbers = values(x);
    for (int64_t t = 0; t < T; ++t)
      for (int64_t g = 0; g < G; ++g) {
        const int64_t slot = tokens.rows.data<int32_t>()[t] * slots + tokens.positions.data<int32_t>()[t] % slots;
        const double scale = scales.data<float>()[slot * G + g];
        double largest = 0;
        for (int64_t d = 0; d < hd; ++d) {
          const double exact = numbers[size_t((t * G + g) * hd + d)];
          largest = std::max(largest, std::abs(exact));
          const double got = scale * float(cache.data<e4m3>()[(slot * G + g) * hd + d]);
          EXPECT_NEAR(got, exact, std::max(std::abs(exact) / 16, scale * 0x1p-10) * (1 + 1e-6));
        }
        EXPECT_NEAR(448 * scale, largest, 1e-6 * largest);
      }
  }
}

TEST(AppendQuantised, KeepsZerosAndNumbersThatAreNotFinite) {
  Rank rank;
  const Tensor cache = rank.stream.empty({1, 3, 1, 2}, DType::f8), scales = rank.poisoned({1, 3, 1}, DType::f32);
  const Tensor x = rank.tensor<float>({1, 3, 1, 2}, {0, 0, 1, std::numeric_limits<float>::infinity(), 2, -1});
  kernels::append_quantised(rank.stream, cache, scales, x, cache_tokens(rank, {{0, 0, 3}}));
  const auto at = [&](int64_t slot, int64_t d) {
    return scales.data<float>()[slot] * float(cache.data<e4m3>()[2 * slot + d]);
  };
  EXPECT_EQ(at(0, 0), 0);
  EXPECT_TRUE(std::isnan(at(1, 0)));
  EXPECT_EQ(at(2, 0), 2);
  EXPECT_EQ(at(2, 1), -1);
}

TEST(AppendToCache, AcceptsNoSequences) {
  Rank rank;
  kernels::append_to_cache(rank.stream, rank.stream.empty({0, 4, 1, 2}, DType::f32),
                           rank.stream.empty({0, 1, 2}, DType::f32), cache_tokens(rank, {}));
}

TEST(CacheTokens, PartsKeepTheirRuns) {
  Rank rank;
  const CacheTokens part = cache_tokens(rank, {{0, 5, 1}, {2, 0, 3}, {1, 9, 1}}).part(1, 2, 1);
  EXPECT_EQ(part.runs.size(), 2u);
  EXPECT_EQ(part.runs[0].row, 2);
  EXPECT_EQ(part.rows.to_vector<int32_t>(), (std::vector<int32_t>{2, 2, 2, 1}));
  EXPECT_EQ(part.positions.to_vector<int32_t>(), (std::vector<int32_t>{0, 1, 2, 9}));
}

}  // namespace
}  // namespace witan
